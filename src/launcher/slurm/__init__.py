"""SLURM's commands, the meaning of its signals, and the files of a submission.

Nothing here imports torch.
"""
