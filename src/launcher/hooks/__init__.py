"""What happens beside the loop: one hook a file, named in `conf/hooks/`."""
