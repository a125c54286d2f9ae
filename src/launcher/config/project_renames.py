"""Keys and classes that a project has renamed: `identity_renames.yaml` next to its options."""

from collections.abc import Mapping

from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from launcher.config import plain_yaml
from launcher.config.messages import reason, show
from launcher.config.options import composed_from
from launcher.config.plain import to_plain
from launcher.errors import ConfigError

KEY = "identity_renames"
FILE = f"{KEY}.yaml"


def project_renames(config: DictConfig) -> dict[str, str]:
    """Return the renames of a configuration, old name to new name.

    The schema rejects all but a mapping of texts.
    """
    written = OmegaConf.select(config, KEY)
    renames = to_plain(written) if isinstance(written, DictConfig) else {}
    return {old: new for old, new in renames.items() if isinstance(new, str)}


def renames_in_files(tree: Mapping[str, object]) -> dict[str, str]:
    """Return the renames in the folders of options that a configuration was composed from.

    They are the project's own folder, the folder of `--config-dir`, and the folders of installed
    packages.

    Args:
        tree: the configuration as plain containers.
    Raises:
        ConfigError: a file is not a mapping of old names to new names.
    """
    renames: dict[str, str] = {}
    for folder in composed_from(tree):
        file = folder / FILE
        if file.is_file():
            try:
                content = plain_yaml.load(file.read_bytes())
            except (YAMLError, UnicodeDecodeError, OSError) as error:
                raise ConfigError(f"{KEY}: {file} cannot be read ({reason(error)}).") from error
            if not isinstance(content, dict) or not all(
                isinstance(name, str) for renames in content.items() for name in renames
            ):
                raise ConfigError(
                    f"{KEY}={show(content)}: {file} should have lines `old.name: new.name`."
                )
            renames |= content
    return renames
