"""The values of a configuration, all interpolations resolved, with a sentence for each that cannot be had."""

import re
from typing import Any

from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config.identity import choices, is_interpolation, join, unresolved, value_at
from launcher.config.messages import hint
from launcher.config.options import composed_from, options_with

UNRESOLVED = object()
"""Stands for a value that could not be had; its own sentence says why, so no other complains of it."""


REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def resolve(config: DictConfig) -> tuple[dict[str, Any], list[str]]:
    """The configuration as plain containers, Hydra's node left out, and a sentence for each thing missing in it."""
    resolver = _Resolver(config)
    written = unresolved(config)
    # run.id hashes everything: it cannot be had while anything else fails, so it comes last
    tree = {key: resolver.value(written[key], (key,)) for key in sorted(written, key=lambda key: key == "run")}
    return {key: tree[key] for key in written}, resolver.sentences()


def plain_hydra(node: DictConfig) -> dict[str, Any]:
    """Hydra's node as plain containers, with its interpolations as they are written."""
    plain = OmegaConf.to_container(node, resolve=False, enum_to_str=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def references(config: Any, path: str = "") -> dict[str, str]:
    """Which other key a key takes its value from: `{"model.vocab_size": "data.vocab_size"}`."""
    found: dict[str, str] = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        here = join(path, key)
        if isinstance(value, str) and (match := REFERENCE.fullmatch(value)):
            found[here] = match[1]
        found |= references(value, here)
    return found


class _Resolver:
    def __init__(self, root: DictConfig):
        self.root = root
        self.faults: list[str] = []
        self.lacking: dict[str, dict[str, str]] = {}
        """For a group whose option lacks keys that others refer to: what refers (`model.vocab_size=${...}`) -> key."""

    def value(self, written: Any, keys: tuple[Any, ...]) -> Any:
        """What stands under these keys, for what is written there."""
        if isinstance(written, dict):
            return {str(key): self.value(value, (*keys, key)) for key, value in written.items()}
        if isinstance(written, list):
            return [self.value(value, (*keys, index)) for index, value in enumerate(written)]
        if written == "???":
            path = ".".join(map(str, keys))
            self.faults.append(f"{path}: needs a value; e.g. {path}=...")
            return UNRESOLVED
        return self.interpolated(written, keys) if is_interpolation(written) else written

    def interpolated(self, written: str, keys: tuple[Any, ...]) -> Any:
        try:
            value = value_at(self.root, keys)
        except OmegaConfBaseException as error:
            if not (keys[0] == "run" and (self.faults or self.lacking)):
                self.note(".".join(map(str, keys)), written, error)
            return UNRESOLVED
        if isinstance(value, Container):
            return self.value(OmegaConf.to_container(value, resolve=False), keys)
        return value

    def note(self, path: str, written: str, error: Exception) -> None:
        """Why an interpolation does not resolve: mostly it leads to a key that is not there."""
        for reference in REFERENCE.findall(written):
            if OmegaConf.select(self.root, reference, default=UNRESOLVED, throw_on_missing=False) is not UNRESOLVED:
                continue
            group, _, name = reference.partition(".")
            if name and choices(self.root).get(group):
                self.lacking.setdefault(group, {})[f"{path}={written}"] = name
            else:
                near = hint(reference, _dotted_keys(self.root), "${{{}}}")
                self.faults.append(f"{path}={written}: there is no {reference}{near}")
            return
        self.faults.append(f"{path}={written}: cannot be resolved: {str(error).splitlines()[0]}")

    def sentences(self) -> list[str]:
        return self.faults + [self._lack(group, referring) for group, referring in self.lacking.items()]

    def _lack(self, group: str, referring: dict[str, str]) -> str:
        """One sentence for all keys that the chosen option of a group owes to others, and the options that do not."""
        folders = composed_from(self.root)
        having = [set(options_with(folders, group, name)) for name in referring.values()]
        fitting = [f"{group}={option}" for option in sorted(set.intersection(*having))]
        way = f"choose {', '.join(fitting)} or " if fitting else ""
        names = " and no ".join(dict.fromkeys(referring.values()))
        keys = " ".join(f"{one.partition('=')[0]}=..." for one in referring)
        chosen = choices(self.root)[group]
        return f"{', '.join(referring)}: {group}={chosen} has no {names}; {way}set {keys} outright."


def _dotted_keys(root: DictConfig) -> list[str]:
    return [join(key, name) for key, node in unresolved(root).items() if isinstance(node, dict) for name in node]
