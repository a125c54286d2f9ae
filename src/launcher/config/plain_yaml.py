"""Read YAML without OmegaConf, by the C parser if it is installed, which is ten times as fast."""

from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str | bytes) -> Any:
    """Read plain containers, in which a date is a `date` and not text.

    Raises:
        yaml.YAMLError, UnicodeDecodeError: it cannot be read.
    """
    return yaml.load(text, Loader=LOADER)
