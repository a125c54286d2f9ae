"""Small trainings with other libraries, for `python -m launcher.certify`.

docs/prove.md has its results.

Each has the same data and model, with shuffling and dropout, and prints its step and its loss. They
save and resume as their libraries' documentation shows.
"""
