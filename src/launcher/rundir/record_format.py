"""The format of `run.json`: its keys, their types, and how a number and a time are written."""

import math
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import orjson

from launcher.process.files import patiently, read_file

Outcome = Literal["completed", "paused", "preempted", "cancelled", "failed", "killed"]
STATES = (None, "queued", "running", "paused", "preempted", "cancelled", "completed", "failed")
FORMAT_VERSION = 2
"""Version of run.json and of a trial's file. It changes with their fields, and a change comes with
code that reads the one before."""
READABLE_VERSIONS = (1, 2)
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


class UnstoredData(TypedDict):
    """State that changes while the run trains and is not stored, see `launcher.resume.unstored`."""

    lost: list[str]
    """Changes that a resume would lose, by path and value."""
    changed: list[str]
    """Paths of values that have changed once, as a cache does."""
    is_cut: bool
    """True if there were more objects than were looked at."""


class TrainedData(TypedDict, total=False):
    """Data that decide the numbers of steps, see `launcher.rundir.training_history`."""

    settings: dict[str, Any] | None
    """The nodes of its identity, with the hooks and the length, that are new or have changed since
    the attempt before."""
    gone: list[str] | None
    """The nodes that it lacks, and the attempt before has."""
    changes: list[str] | None
    """Changes of code, versions, data and machine since the checkpoint that it resumed from."""
    weights: str | None
    """Digest of the weights of `run.init_from`, if it has loaded them."""


PYTHON = "python"
"""The start of Python itself, before the first line of the command."""
STARTING = ("imports", "build", "checkpoint")
"""Parts of an attempt's start, without `PYTHON`: until modules are imported, the trainer is built,
and its state is restored."""
FIRST_STEP = "first_step"
"""The step that compiles, if any does."""


class AttemptData(TypedDict, total=False):
    """One process (or group of ranks) that worked on the run; `outcome` is None while it works.

    Times are ISO 8601 in UTC, steps are optimizer steps, `signal` is a name ("SIGTERM").
    """

    number: int
    started: str
    host: str
    pid: int
    user: str | None
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
    """Time since which it had waited for SLURM: when it was submitted, or when the previous attempt
    in the same job ended."""
    launched: str | None
    """Time at which SLURM or a user launched it. `started` is later, since modules are imported and
    the model is built in between."""
    machine: str | None
    """Properties of rank 0's machine that decide the last bits, see `provenance.described`."""
    micro_batch_size: int | None
    """Samples of a forward pass on each rank, which the next attempt with `auto` keeps."""
    seconds: dict[str, float] | None
    """Seconds that it was `starting` (until its first step), `evaluating` and `saving` while
    training waited; seconds of the parts of its start (`PYTHON`, `STARTING`), of its first step."""
    trained: TrainedData | None


class TrialData(TypedDict):
    """A trial of a hyperparameter search in run.json, see `launcher.runs.trials`."""

    study: str
    objective: str
    direction: Literal["minimize", "maximize"]
    value: Literal["best", "last"]
    number: int
    sampled: dict[str, Any]
    distributions: dict[str, Any]
    attributes: dict[str, Any]
    origin: str
    rejection: str | None
    bracket: int
    target: int | None
    pruned: int | None
    cancelled: bool
    failures: int


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
    unstored: UnstoredData | None
    attempts: list[AttemptData]
    overrides: list[str] | None
    choices: dict[str, object]
    config_dir: str | None
    config: dict[str, object]
    identity: dict[str, object] | None
    identity_id: str | None
    identity_version: int | None
    uncounted: list[str] | None
    """Keys that change no number, by what the classes of its parts declared at its newest start."""
    folder: str | None
    data_files: str | None
    """See `launcher.rundir.data_files`."""
    signature: str | None
    """See `launcher.rundir.signing`."""


class Field(NamedTuple):
    """The types of a value for `isinstance`, and the fields of a mapping or of each item."""

    types: tuple[type, ...]
    inner: "dict[str, Field] | None"


def _fields(keys: type) -> dict[str, Field]:
    """Return the fields of a TypedDict."""
    return {key: _field(hint) for key, hint in get_type_hints(keys).items()}


def _field(hint: Any) -> Field:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        parts = [_field(argument) for argument in arguments]
        inner = next((part.inner for part in parts if part.inner), None)
        return Field(tuple(cls for part in parts for cls in part.types), inner)
    if origin is Literal:
        return Field((str,), None)
    if is_typeddict(hint):
        return Field((dict,), _fields(hint))
    if origin is list and is_typeddict(arguments[0]):
        return Field((list,), _fields(arguments[0]))
    return Field((int, float) if hint is float else (origin or hint,), None)


RECORD_FIELDS = _fields(RecordData)
ATTEMPT_KEYS = tuple(AttemptData.__annotations__)


class UnsupportedRecord(ValueError):
    """A record in a format that only another version of Launcher reads."""


def read_record(path: str | os.PathLike[str]) -> RecordData:
    """Read a `run.json`.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not a run record: not JSON, or a value of the wrong type.
    """
    return parse_record(patiently(lambda: read_file(path)))


def parse_record(content: bytes) -> RecordData:
    data: RecordData = orjson.loads(content)
    if not isinstance(data, dict):
        raise ValueError("not a mapping")
    version = data.get("format_version", FORMAT_VERSION)
    if isinstance(version, int) and version not in READABLE_VERSIONS:
        raise UnsupportedRecord(
            f"written by another version of Launcher (format_version {version}, and this one"
            f" reads {FORMAT_VERSION})"
        )
    _check(data, RECORD_FIELDS, "", data)
    if data.get("state") not in STATES:
        raise ValueError(f"state is {data['state']!r}")
    for name, value in (data.get("logged") or {"newest": {}})["newest"].items():
        if not (isinstance(value, list) and len(value) == 2):
            raise ValueError(f"logged.newest.{name} is {value!r:.40}")
    for override in data.get("overrides") or ():
        if not isinstance(override, str):
            raise ValueError(f"overrides has {override!r:.40}")
    return data


def _check(data: Any, fields: Mapping[str, Field], path: str, keys: Iterable[str]) -> None:
    """Check the types of the values with these keys, and all that they contain."""
    if not isinstance(data, dict):
        raise ValueError(f"{path.rstrip('.')} is not a mapping")
    for key in keys:
        if key not in fields:
            continue
        value, (types, inner) = data.get(key), fields[key]
        if not isinstance(value, types):
            raise ValueError(f"{path}{key} is {value!r:.40}")
        if inner is None or value is None:
            continue
        if isinstance(value, list):
            for index, item in enumerate(value):
                _check(item, inner, f"{path}{key}[{index}].", inner)
        else:
            _check(value, inner, f"{path}{key}.", inner)


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
