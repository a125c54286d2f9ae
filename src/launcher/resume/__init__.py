"""What a run starts from: its own checkpoint, the steps of another run, or other weights."""
