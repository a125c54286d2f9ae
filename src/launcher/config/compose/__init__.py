"""Hydra's composition: groups, then values, with a message for each one that does not apply."""
