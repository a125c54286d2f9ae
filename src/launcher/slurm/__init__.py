"""SLURM's commands, what a signal from it means, and the files of a submission. Nothing here
imports torch."""
