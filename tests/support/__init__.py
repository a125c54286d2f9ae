"""Helpers of the tests: projects, processes, failing disks, a SLURM cluster."""
