"""The command line: Hydra's, in which every fault of a configuration is one sentence."""
