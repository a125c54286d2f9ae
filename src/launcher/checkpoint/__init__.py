"""Writes, commits, verifies, finds and retains checkpoints. The hook decides when this happens."""
