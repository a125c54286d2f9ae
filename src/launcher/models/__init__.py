"""Models, one per file, with the interface in `base`."""
