"""The process that works on a run: signals, ranks, device, random state."""
