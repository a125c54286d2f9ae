"""`python -m launcher.runs`: list runs, look at them, and act on them.

Only `checkpoints --digest` imports torch.
"""
