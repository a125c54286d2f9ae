"""SLURM's commands, its signals, and the files of a submission. Nothing here imports torch."""
