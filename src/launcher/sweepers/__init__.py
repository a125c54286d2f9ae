"""Hyperparameter search: what to try next, decided by what the runs on disk say."""
