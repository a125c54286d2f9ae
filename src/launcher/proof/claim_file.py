"""A claim about a run: an in-toto statement that names what trained it and what it has reached."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.config.identity.run_id import digest as id_of
from launcher.config.options import main_folder
from launcher.config.plain_yaml import load
from launcher.config.tree import get, walk
from launcher.errors import ConfigError
from launcher.process.files import open_file, parse_json, read_file
from launcher.process.plural import plural
from launcher.rundir.data_files import MAX_FILES, find_paths

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://torch-launcher.org/claim/v1"
NAME = "claim.json"
FOLDER = "<folder>/"
"""The current folder in an identity."""
EVALUATION_KEYS = ("metrics", "max_samples", "loader")
MAX_LISTED = 16
"""Files and lines of the chain that a claim lists; more files have one digest."""
NUMBER, TEXT = (int, float), (str,)
NONE = type(None)
SHAPE: dict[str, tuple[type, ...]] = {
    "step": (int,),
    "ranks": (int,),
    "lanes": (int, NONE),
    "device_hours": NUMBER,
    "metric": (dict, NONE),
    **dict.fromkeys(("identity", "beyond_identity", "machine", "versions"), (dict,)),
    **dict.fromkeys(("code", "data", "chain"), (dict,)),
    "machine.threads": (int,),
    "machine.device": TEXT,
    "code.commit": (*TEXT, NONE),
    "code.sources": (dict, NONE),
    "code.count": (int, NONE),
    "data.files": (dict, NONE),
    "data.count": (int, NONE),
    "chain.root": TEXT,
    "chain.length": (int,),
    "chain.lines": (list,),
    "sweeps": (list, NONE),
}
"""The types of the values of a claim's predicate."""


@dataclass(frozen=True)
class Claim:
    """A statement that was read."""

    name: str
    """`<name>/<id>` of the run."""
    weights: str
    """Digest of the weights, see `checkpoint.stored.weights_digest`."""
    predicate: Mapping[str, Any]
    digest: str
    """Digest of the file."""

    @property
    def id(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def step(self) -> int:
        return int(self.predicate["step"])

    @property
    def ranks(self) -> int:
        return int(self.predicate["ranks"])

    @classmethod
    def read(cls, file: Path) -> "Claim":
        """Read a claim.

        Raises:
            ConfigError: it cannot be read, or is not a claim.
        """
        try:
            content = read_file(file, follow=True)
            data = parse_json(content)
            subject, predicate = data["subject"][0], data["predicate"]
            claim = cls(
                subject["name"],
                subject["digest"]["sha256"],
                predicate,
                hashlib.sha256(content).hexdigest(),
            )
            types = data["_type"], data["predicateType"]
            is_claim = types == (STATEMENT, PREDICATE) and all(
                isinstance(get(predicate, key), expected) for key, expected in SHAPE.items()
            )
            numbers = claim.step, claim.ranks, int(predicate["chain"]["length"])
            metric = predicate["metric"] or {"name": "", "split": "val", "value": "0x0"}
            float.fromhex(metric["value"])
            for sweep in predicate.get("sweeps") or ():
                describe_sweep(sweep)
            texts = claim.name, claim.weights, metric["name"], *predicate["chain"]["lines"]
            is_claim &= metric["split"] == "val" and all(isinstance(text, str) for text in texts)
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read ({error.strerror}).") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{file}: is not a claim ({type(error).__name__}: {error})."
            ) from None
        if not is_claim or min(numbers) < 1:
            raise ConfigError(f"{file}: is not a claim of this version of Launcher.")
        return claim

    def id_of_identity(self) -> str:
        """Return the id that the identity gives a run."""
        return id_of(dict(self.predicate["identity"]))


def describe_sweep(sweep: Mapping[str, Any]) -> str:
    """Describe what a claim declares of a sweep or search."""
    place = f", number {sweep['place']} by the best {sweep['metric']}" if "place" in sweep else ""
    return f"it is one of {plural(int(sweep['runs']), 'run')} of {sweep['name']}{place}"


def digest_file(path: str | Path) -> str:
    digest = hashlib.sha256()
    with open_file(path, follow=True) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def digest_lines(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def files_of(identity: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the files on this machine that the data, the model and the start of a run name."""
    start = identity.get("run.init_from")
    for node in (identity.get("data"), identity.get("model"), {"init_from": start}):
        yield from (path for path in paths_here(node) if path.is_file())


def paths_here(node: Any) -> Iterator[Path]:
    """Yield what the values of a node of an identity may name here, whether it exists or not."""
    yield from map(Path, find_paths(_here(node)))


def _here(node: Any) -> Any:
    """Return a node of an identity with the current folder in place of its pattern."""
    if isinstance(node, dict):
        return {key: _here(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_here(value) for value in node]
    return node.removeprefix(FOLDER) if isinstance(node, str) else node


def data_of(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return names, sizes and digests of the files of a run on this machine.

    Returns:
        `files` by name; of more than `MAX_LISTED` their number and one digest.
    """
    paths = list(files_of(identity))
    # Absolute paths are published with the identity only.
    absolute = [path for path in paths if path.is_absolute()]
    root = os.path.commonpath([path.parent for path in absolute]) if absolute else ""
    files = {
        (path.relative_to(root) if path.is_absolute() else path).as_posix(): path for path in paths
    }
    if len(files) >= MAX_FILES:
        raise ConfigError(f"data: has {MAX_FILES} files or more; a claim needs fewer, larger ones.")
    found = {
        name: f"{path.stat().st_size} {digest_file(path)}" for name, path in sorted(files.items())
    }
    if len(found) <= MAX_LISTED:
        return {"files": found}
    return {"count": len(found), "sha256": digest_lines([f"{k} {v}" for k, v in found.items()])}


def beyond_identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a stored configuration that its identity does not tell, and count.

    Returns:
        `excluded`, the keys that the run itself keeps out of its identity, and `evaluation`, what
        decides the metrics.
    """
    own = set(load(main_folder().joinpath("config.yaml").read_bytes())["run"]["identity_exclude"])
    hook = (config.get("hooks") or {}).get("evaluation") or {}
    return {
        "excluded": sorted({*map(str, config["run"]["identity_exclude"])} - own),
        "evaluation": {key: hook.get(key) for key in EVALUATION_KEYS},
    }


def paths_in(identity: Mapping[str, Any]) -> list[str]:
    """List the values of an identity that are paths, as `key=value`."""
    return [
        f"{key}={value}"
        for key, value in walk(identity, lists=True)
        if isinstance(value, str) and ("/" in value or value.startswith("~"))
    ]


def text_of(statement: Mapping[str, Any]) -> str:
    return json.dumps(statement, indent=1, allow_nan=False) + "\n"
