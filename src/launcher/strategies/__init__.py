"""How the parts of a run are laid over processes and devices: one strategy a file, all by the verbs of `base`."""
