"""Trackers, which mirror metrics.jsonl elsewhere, in a separate process without torch."""
