"""`python -m launcher.runs`: list runs, look at them, and act on them.

Only `digest` imports torch.
"""
