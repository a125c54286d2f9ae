"""The folder of a run: its files, record, lock, logs and history."""
