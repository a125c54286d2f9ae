"""Hyperparameter search: decides what to try next from the runs on disk."""
