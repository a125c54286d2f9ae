"""Helpers of the tests: projects, processes, disks that fail, a SLURM cluster."""
