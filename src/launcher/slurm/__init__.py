"""What is known of SLURM, and what a submission leaves in the folders. It needs no torch."""
