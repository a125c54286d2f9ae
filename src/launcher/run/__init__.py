"""One run: its folder on disk, and the processes that work on it."""
