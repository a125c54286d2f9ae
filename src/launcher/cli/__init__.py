"""The command line: Hydra's, with every fault of a configuration in one sentence."""
