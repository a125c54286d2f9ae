"""Hyperparameter search: what to try next, decided by the runs on disk."""
