"""Decide which code a stored configuration may name.

A run folder, a checkpoint or an export may come from somebody else, and a `_target_` in it would be
imported and called. So it is checked before anything of it is built.

A name is allowed if this command's own YAML files or command line contain it, if it is one of
Launcher's own parts or a class of torch.nn, torch.optim or torch.utils.data, or if the project's
own files define it. Everything else needs `--trust`.

A target counts for the definition that it leads to: `launcher.dispatch.local.os.system` is not
Launcher's. Every module on the way counts too, since importing a module runs it. Nothing is
imported for the check.
"""

import ast
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config import plain_yaml
from launcher.config.messages import reason, show
from launcher.config.options import installed, main_folder, own_folder
from launcher.config.overrides import parse
from launcher.config.schema import target_not_found
from launcher.config.source import Definition, Module, NotFound, Unresolvable, find_module, locate
from launcher.config.tree import is_interpolation, join
from launcher.errors import ConfigError
from launcher.rundir.sources import is_installed

TARGET = "_target_"
LAUNCHER = Path(__file__).resolve().parents[1]
PARTS = tuple(
    f"launcher.{name}." for name in ("data", "hooks", "models", "optim", "strategies", "trackers")
)
"""Packages whose classes are allowed. Functions in them are allowed only if Launcher's YAML files
name them."""
TORCH = ("torch.nn.", "torch.optim.", "torch.utils.data.")
UNPICKLES = "torch.utils.data.datapipes."
SHELL = (
    "setup",
    "modules",
    "python",
    "srun",
    "sbatch",
    "container",
    "container_mounts",
    "interface",
)
"""Keys of `dispatch` whose text becomes part of a job's script."""
RESOURCES = (
    "account",
    "begin",
    "comment",
    "constraint",
    "cpus-per-gpu",
    "deadline",
    "dependency",
    "exclude",
    "exclusive",
    "gres",
    "hold",
    "licenses",
    "mem-per-cpu",
    "mem-per-gpu",
    "nice",
    "nodelist",
    "partition",
    "priority",
    "qos",
    "reservation",
    "switches",
    "time-min",
)
"""Flags of `dispatch.sbatch` that run nothing."""
TEXT = ("run", "paths", "trainer", "dispatch", "hpo", "hydra")
"""Nodes that contain only text: nothing in them is built."""
KERNEL = "attn_implementation"
"""A setting of transformers models. With a slash, it names code of the hub."""
LITERAL = re.compile(r"\$\{oc\.env:\w+(?:,[^${}]*)?\}|\\\$\{")
"""Pattern of interpolations whose meaning depends on no other key."""

Name = tuple[str, str]
"""A key and its value: `("_target_", "my_package.Net")`."""


@dataclass(frozen=True)
class Code:
    """A value that decides which code runs, and the same before it was resolved (`written`)."""

    path: str
    key: str
    value: Any
    written: object

    @property
    def names(self) -> set[Name]:
        """Return the names by which it may be allowed.

        Text that Hydra would resolve once more has none, since its final value is not known.
        """
        if is_interpolation(self.value) and not self.path.startswith("dispatch."):
            return set()
        is_plain = isinstance(self.written, str) and "${" not in LITERAL.sub("", self.written)
        return {(self.key, str(self.value))} | (
            {(self.key, str(self.written))} if is_plain else set()
        )

    @property
    def is_target(self) -> bool:
        return isinstance(self.value, str) and (self.key == TARGET or self.key.startswith("on_"))

    def __str__(self) -> str:
        return f"{self.path}={self.value if self.is_target else show(self.value)}"


@dataclass(frozen=True)
class Origin:
    """Source of a stored configuration.

    Args:
        file: shown in messages.
        folder: the run or checkpoint that it belongs to. No code in it is the project's own.
        remedy: what its reader adds to trust it.
    """

    file: Path
    folder: Path
    remedy: str = "--trust"

    def checked(
        self, config: DictConfig, keys: Iterable[str], trust: bool, typed: Iterable[Name] = ()
    ) -> DictConfig:
        """Return nodes of a stored configuration, resolved and checked.

        `typed` are names in this command itself, in addition to the YAML files of Launcher
        and of the project.
        """
        try:
            nodes = {key: config[key] for key in keys if key in config}
            written, resolved = (
                {
                    key: (
                        OmegaConf.to_container(node, resolve=resolve)
                        if OmegaConf.is_config(node)
                        else node
                    )
                    for key, node in nodes.items()
                }
                for resolve in (False, True)
            )
        except OmegaConfBaseException as error:
            raise ConfigError(f"{self.file}: {reason(error)}.") from error
        if not trust:
            self.check(resolved, written, typed)
        return OmegaConf.create(resolved)

    def check(
        self, resolved: object, written: object, typed: Iterable[Name], retype: bool = False
    ) -> None:
        """Check that a tree names only allowed code.

        With `retype`, the message contains how to name the code on the command line.
        """
        unknown = [code for code in code_in(resolved, written) if not self._is_allowed(code)]
        if not unknown:
            return
        named = {*typed, *names_in_files([main_folder(), *installed().values(), own_folder()])}
        rejected = [code for code in unknown if not code.names & named]
        if rejected:
            can_type = retype and all(
                code.is_target and not re.search(r"\.\d+\.", code.path) for code in rejected
            )
            again = f", or type {' '.join(map(str, rejected))}" if can_type else ""
            self.reject(", ".join(map(str, rejected[:8])), "names it", again)

    def in_project(self, folder: Path) -> bool:
        """Return whether a folder in the stored configuration belongs to the current project."""
        return folder.resolve().is_relative_to(Path.cwd().resolve()) and self._is_own(folder)

    def reject(self, what: str, how: str, otherwise: str = "") -> None:
        """Raise the error that names the code."""
        raise ConfigError(
            f"{what}: only the stored configuration {self.file} {how}, and it would run code; if"
            f" you trust its author, add {self.remedy}{otherwise}."
        )

    def _is_allowed(self, code: Code) -> bool:
        if not code.is_target:
            return False
        modules = _modules(code.value)
        if not modules:
            return _is_missing(code.value.partition(".")[0])
        if not all(map(self._is_known, modules)):
            return False
        try:
            definition = locate(code.value)
        except NotFound as error:
            raise ConfigError(
                str(target_not_found(code.path.removesuffix(f".{TARGET}"), code.value, error))
            ) from error
        except (Unresolvable, ValueError):
            return False
        if not isinstance(definition, Definition):
            return False
        name = f"{definition.module.name}."
        if isinstance(definition.node, ast.ClassDef) and name.startswith((*PARTS, *TORCH)):
            return self._is_known(definition.module) and not name.startswith(UNPICKLES)
        return definition.module.path is not None and self._is_own(definition.module.path.parent)

    def _is_known(self, module: Module) -> bool:
        """Return whether a module is Launcher's, torch's or the project's own."""
        if module.path is None:
            # A namespace package has no code.
            return bool(module.folders)
        if module.path.resolve().is_relative_to(LAUNCHER) or module.name.split(".")[0] == "torch":
            return True
        return self._is_own(module.path.parent)

    def _is_own(self, folder: Path) -> bool:
        """Return whether the files of a folder are the user's own.

        Installed files are not, nor are files next to the stored configuration.
        """
        project, stored, folder = Path.cwd().resolve(), self.folder.resolve(), folder.resolve()
        inside = stored.relative_to(project).parts[:1] if stored.is_relative_to(project) else ()
        foreign = [stored, *(project / name for name in inside)]
        return not is_installed(str(folder)) and not any(
            folder.is_relative_to(root) for root in foreign
        )


def code_in(resolved: object, written: object, path: str = "", key: str = "") -> Iterator[Code]:
    """List every value of a tree that decides which code runs, at any depth."""
    if _decides(path, key, resolved):
        yield Code(path, KERNEL if KERNEL in path else key, resolved, written)
    elif isinstance(resolved, Mapping):
        for name, value in resolved.items():
            inner = written.get(name) if isinstance(written, Mapping) else None
            yield from code_in(value, inner, join(path, name), str(name))
    elif isinstance(resolved, list):
        items = (
            written
            if isinstance(written, list) and len(written) == len(resolved)
            else [None] * len(resolved)
        )
        for index, (value, inner) in enumerate(zip(resolved, items, strict=True)):
            yield from code_in(value, inner, join(path, index), key)


def _decides(path: str, key: str, value: object) -> bool:
    group, _, rest = path.partition(".")
    if key == TARGET or path in ("job.trust", "hpo.space_function"):
        return key == TARGET or bool(value)
    if isinstance(value, Mapping | list) or value is None or value is False:
        return key == "weights_only" and value is False
    if group == "dispatch":
        return _extends_script(rest, str(value))
    if group not in TEXT and is_interpolation(value):
        return True  # Hydra resolves it once more
    is_function = key.startswith("on_") and isinstance(value, str)
    is_remote = key == "trust_remote_code" or (KERNEL in path and "/" in str(value))
    return is_function or is_remote


def _extends_script(key: str, text: str) -> bool:
    """Return whether a setting of `dispatch` may add a command to a job's script."""
    name, _, flag = key.partition(".")
    is_plain = (name == "sbatch" and flag in RESOURCES) or (
        name == "interface" and re.fullmatch(r"[\w.,:=^-]*", text)
    )
    return "\n" in text or (name in SHELL and not is_plain)


def _modules(target: str) -> list[Module]:
    """The modules that are imported for a target."""
    parts = target.split(".")
    modules = (find_module(".".join(parts[:count])) for count in range(1, len(parts) + 1))
    return [module for module in modules if module is not None]


def _is_missing(name: str) -> bool:
    """Return whether importing a module certainly fails, so that nothing runs."""
    try:
        return (
            name.isidentifier()
            and name not in sys.modules
            and importlib.util.find_spec(name) is None
        )
    except (ImportError, ValueError):
        return False


def names_in(tree: object, key: str = "") -> Iterator[Name]:
    """Yield each value of a tree with its key, an item of a list with the key of the list."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from names_in(value, str(name))
    elif isinstance(tree, list):
        for value in tree:
            yield from names_in(value, key)
    else:
        yield key, str(tree)


def names_typed(overrides: Iterable[str]) -> Iterator[Name]:
    """Yield each value of the overrides of a command line with its key."""
    for override in map(parse, overrides):
        if not override.is_delete() and not override.is_sweep_override():
            yield from names_in(override.value(), override.key_or_group.rpartition(".")[2])


def names_in_files(folders: Iterable[Traversable | None]) -> Iterator[Name]:
    """Yield each value in the YAML files of folders and of their subfolders with its key."""
    for folder in folders:
        for entry in folder.iterdir() if folder is not None and folder.is_dir() else ():
            if entry.is_dir():
                yield from names_in_files([entry])
            elif entry.name.endswith(".yaml"):
                try:
                    yield from names_in(plain_yaml.load(entry.read_bytes()))
                except (OSError, UnicodeDecodeError, yaml.YAMLError):
                    continue
