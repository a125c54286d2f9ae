"""Verbs that act on runs."""
