"""Hooks: what happens next to the loop, one hook a file, named in `conf/hooks/`."""
