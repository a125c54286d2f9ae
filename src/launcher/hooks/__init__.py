"""Hooks, which add to the loop: one hook per file, named in `conf/hooks/`."""
