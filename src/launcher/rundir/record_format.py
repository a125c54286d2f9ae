"""The format of `run.json`: its keys, their types, and how a number and a time are written."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    Literal,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import orjson

from launcher.rundir.files import patiently
from launcher.rundir.folder import run_name

Outcome = Literal["completed", "paused", "preempted", "cancelled", "failed", "killed"]
STATES = (None, "queued", "running", "paused", "preempted", "cancelled", "completed", "failed")
FORMAT_VERSION = 1
"""Version of run.json. A change of the format comes with code that reads the one before."""
IDENTITY_VERSION = 1
"""Version of the tree that is hashed for a run's id: a change gives every run another id."""


class BestData(TypedDict, total=False):
    metric: str
    value: float | str
    step: int
    mode: Literal["min", "max"] | None
    """The direction in which the metric is better."""


class ForkedFromData(TypedDict):
    id: str
    name: str
    step: int


class SharedData(TypedDict):
    run: str
    """Id of the run that trained the first steps."""
    step: int
    digest: str
    """Digest of the weights at that step."""


class LoggedData(TypedDict):
    curve: str
    newest: dict[str, list[Any]]
    """The step and the value of each metric."""


class AttemptData(TypedDict, total=False):
    """An attempt in run.json, see `Attempt`."""

    number: int
    started: str
    host: str
    pid: int
    start_step: int
    ended: str | None
    slurm_job_id: str | None
    end_step: int | None
    outcome: Outcome | None
    signal: str | None
    exit_code: int | None
    reason: str | None
    world_size: int | None
    queued: str | None
    launched: str | None
    machine: str | None
    micro_batch_size: int | None
    seconds: dict[str, float] | None


class TrialData(TypedDict):
    """A trial of a hyperparameter search in run.json, see `launcher.runs.trials`."""

    study: str
    objectives: list[str]
    directions: list[str]
    value: Literal["best", "last"]
    number: int
    sampled: dict[str, Any]
    distributions: dict[str, Any]
    attributes: dict[str, Any]
    shared: dict[str, Any]
    origin: str
    refusal: str | None
    bracket: int
    target: int | None
    pruned: int | None
    cancelled: bool
    failures: int
    signature: str | None
    """The signature of `attributes` and `shared`, see `launcher.rundir.signing`."""


class RecordData(TypedDict, total=False):
    """The keys of run.json. A record of an earlier version lacks some."""

    format_version: int
    id: str
    name: str
    state: str | None
    queued: str | None
    step: int
    max_steps: int | None
    checkpoint: int | None
    world_size: int | None
    strategy: str | None
    git: dict[str, Any] | None
    versions: dict[str, str]
    loss: float | str | None
    """A string for "nan" and "inf", as other numbers."""
    best: BestData | None
    forked_from: ForkedFromData | None
    shared: SharedData | None
    logged: LoggedData | None
    trials: list[TrialData]
    """The trials of searches that the run is; equal trials share a run."""
    attempts: list[AttemptData]
    overrides: list[str] | None
    choices: dict[str, object]
    config_dir: str | None
    config: dict[str, object]
    identity: dict[str, object] | None
    identity_id: str | None
    identity_version: int | None
    folder: str | None
    data_files: str | None
    """See `launcher.rundir.data_files`."""
    signature: str | None
    """See `launcher.rundir.signing`."""


@dataclass
class Attempt:
    """One process (or group of ranks) that worked on the run; `outcome` is None while it works.

    Times are ISO 8601 in UTC, steps are optimizer steps, `signal` is a name ("SIGTERM").
    """

    number: int
    started: str
    host: str
    pid: int
    start_step: int
    ended: str | None = None
    slurm_job_id: str | None = None
    end_step: int | None = None
    outcome: Outcome | None = None
    signal: str | None = None
    exit_code: int | None = None
    reason: str | None = None
    world_size: int | None = None
    queued: str | None = None
    """Time since which it had waited for SLURM: when it was submitted, or when the previous attempt
    in the same job ended."""
    launched: str | None = None
    """Time at which SLURM or a user launched it. `started` is later, since modules are imported and
    the model is built in between."""
    machine: str | None = None
    """Properties of rank 0's machine that decide the last bits, see `provenance.described`."""
    micro_batch_size: int | None = None
    """Samples of a forward pass on each rank, which the next attempt with `auto` keeps."""
    seconds: dict[str, float] | None = None
    """Seconds that it was `starting` (until its first step), `evaluating` and `saving` while
    training waited."""

    @classmethod
    def of(cls, data: AttemptData) -> "Attempt":
        """Read an attempt of run.json. Keys that it does not have are of a later version."""
        known: Mapping[str, Any] = data
        return cls(**{name: known[name] for name in ATTEMPT_TYPES if name in known})


def _types(keys: type) -> dict[str, tuple[type, ...]]:
    """Return the types that `isinstance` takes for the keys of a TypedDict."""
    return {key: _checkable(hint) for key, hint in get_type_hints(keys).items()}


def _checkable(hint: Any) -> tuple[type, ...]:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return tuple(kind for part in get_args(hint) for kind in _checkable(part))
    if origin is Literal:
        return (str,)
    if is_typeddict(hint):
        return (dict,)
    return (int, float) if hint is float else (origin or hint,)


RECORD_TYPES, ATTEMPT_TYPES = _types(RecordData), _types(AttemptData)
BEST_TYPES, FORKED_FROM_TYPES = _types(BestData), _types(ForkedFromData)
LOGGED_TYPES, TRIAL_TYPES = _types(LoggedData), _types(TrialData)
SHARED_TYPES = _types(SharedData)


class NewerRecord(ValueError):
    """A record in a format that only a later version of Launcher reads."""


def read_record(path: str | os.PathLike[str]) -> RecordData:
    """Read a `run.json`.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not a run record: not JSON, or a value of the wrong type.
    """
    return parse_record(patiently(Path(path).read_bytes))


def stored_record(folder: str | os.PathLike[str]) -> RecordData:
    """Read the `run.json` of a run's folder, which is empty if it cannot be read."""
    try:
        return read_record(f"{os.fspath(folder)}/run.json")
    except (OSError, ValueError):
        return {}


def run_names(folder: Path) -> list[str]:
    """Return the names (`<name>/<id>`) of a run by its folder, and by its record if renamed."""
    record, names = stored_record(folder), [run_name(folder)]
    if {"name", "id"} <= record.keys():
        names.append(f"{record['name']}/{record['id']}")
    return list(dict.fromkeys(names))


def parse_record(content: bytes) -> RecordData:
    data: RecordData = orjson.loads(content)
    if not isinstance(data, dict):
        raise ValueError("not a mapping")
    version = data.get("format_version", FORMAT_VERSION)
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise NewerRecord(
            f"format_version is {version}, and this version of Launcher reads {FORMAT_VERSION}"
        )
    _check({key: value for key, value in data.items() if key in RECORD_TYPES}, RECORD_TYPES, "")
    if data.get("state") not in STATES:
        raise ValueError(f"state is {data['state']!r}")
    if data.get("best") is not None:
        _check(data["best"], BEST_TYPES, "best.", every_key=True)
    if data.get("forked_from") is not None:
        _check(data["forked_from"], FORKED_FROM_TYPES, "forked_from.", every_key=True)
    if data.get("shared") is not None:
        _check(data["shared"], SHARED_TYPES, "shared.", every_key=True)
    if (logged := data.get("logged")) is not None:
        _check(logged, LOGGED_TYPES, "logged.", every_key=True)
        for name, value in logged["newest"].items():
            if not (isinstance(value, list) and len(value) == 2):
                raise ValueError(f"logged.newest.{name} is {value!r:.40}")
    for override in data.get("overrides") or ():
        if not isinstance(override, str):
            raise ValueError(f"overrides has {override!r:.40}")
    for index, trial in enumerate(data.get("trials", [])):
        _check(trial, TRIAL_TYPES, f"trials[{index}].", every_key=True)
    for index, attempt in enumerate(data.get("attempts", [])):
        _check(attempt, ATTEMPT_TYPES, f"attempts[{index}].", every_key=True)
    return data


def _check(
    data: object, types: Mapping[str, tuple[type, ...]], path: str, every_key: bool = False
) -> None:
    """Check the types of the values."""
    if not isinstance(data, dict):
        raise ValueError(f"{path.rstrip('.')} is not a mapping")
    for key in types if every_key else data:
        if key in types and not isinstance(data.get(key), types[key]):
            raise ValueError(f"{path}{key} is {data.get(key)!r:.40}")


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def plain_number(value: float | str) -> float | str:
    """Convert nan and inf, which JSON does not have, to strings."""
    value = float(value)
    return value if math.isfinite(value) else str(value)


def json_value(value: object) -> object:
    """Make text of what JSON readers interpret differently: infinite or huge numbers, objects."""
    if isinstance(value, float):
        return plain_number(value)
    if isinstance(value, int):
        return value if abs(value) < 2**63 else str(value)
    return value if value is None or isinstance(value, str) else str(value)
