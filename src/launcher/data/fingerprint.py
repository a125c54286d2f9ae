"""The fingerprint of the training data that a configuration names."""

import json

from launcher.config.construct import instantiate
from launcher.config.run_config import resolve_node
from launcher.config.schema.source import cached_by_command
from launcher.config.schema.validate import without_own_keys
from launcher.data.iterable import fingerprint


@cached_by_command
def fingerprint_of(node: str, files: str | None) -> str | None:
    """Read the training data of a node, once in a command for each state of its files.

    Args:
        node: the node `data` of a configuration, as JSON.
        files: the state of the files that it names.
    """
    data = instantiate(without_own_keys(resolve_node({"data": json.loads(node)}, "data")))
    data.check()
    return fingerprint(data.train_dataset())
