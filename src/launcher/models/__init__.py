"""Models, one per file. `base` has the interface that every model implements."""
