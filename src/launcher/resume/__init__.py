"""The start of a run: its own checkpoint, the steps of another run, or other weights."""
