"""The settings that no constructor of a part takes, as their schema and as the code reads them."""

from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

from annotated_types import Ge, Lt

from launcher.config.schema.matters_from import before_an_end
from launcher.config.schema.signature import REQUIRED, UNKNOWN, Parameter, Signature
from launcher.types import (
    NonEmptyText,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seconds,
)

AUTO = "auto"


@dataclass(frozen=True)
class Top:
    seed: Annotated[int, Ge(0), Lt(2**32)]
    device: Literal["auto", "cpu", "cuda", "mps"]


@dataclass(frozen=True)
class RunSettings:
    name: str
    id: str
    dir: NonEmptyText
    identity: str | None = None
    tag: str | int | float | None = None
    sweep: str | int | None = None
    resume: Literal["auto", "never", "must"] = "auto"
    init_from: NonEmptyText | None = None
    init_strict: bool = True
    fork_from: NonEmptyText | None = None
    fork_without: list[Literal["optimizer", "data"]] | None = None
    share_prefix: bool | None = None
    leaves: dict[str, list[str]] | None = None
    identity_exclude: list[str] = field(default_factory=list)
    note: str | int | float | None = None
    labels: list[str] | None = None


@dataclass(frozen=True)
class PathsSettings:
    outputs: NonEmptyText


@dataclass(frozen=True)
class TrainerSettings:
    matters_from: ClassVar = {"max_steps": before_an_end, "max_epochs": before_an_end}

    max_steps: PositiveInt | None
    max_epochs: PositiveFloat | None = None
    pause_at: PositiveInt | None = None
    micro_batch_size: PositiveInt | Literal["auto"] | None = None
    lanes: PositiveInt | None = None
    max_grad_norm: NonNegativeFloat | None = 1.0
    max_non_finite_grad_retries: NonNegativeInt | None = None
    max_consecutive_skipped_steps: PositiveInt = 50
    max_consecutive_none_losses: PositiveInt = 100
    sync_every_micro_batch: bool = False
    activation_checkpointing: Literal["none", "full"] | PositiveInt = "none"
    compile: bool | dict[str, Any] = False
    deterministic: bool = False

    @property
    def recompute_every(self) -> int:
        """Recompute every n-th block in the backward pass; 0 recomputes none."""
        every = self.activation_checkpointing
        if isinstance(every, str):
            return {"none": 0, "full": 1}[every]
        return every


@dataclass(frozen=True)
class HpoSettings:
    objective: str
    n_trials: PositiveInt = 50
    space: dict[str, Any] = field(default_factory=dict)
    direction: Literal["auto", "minimize", "maximize"] = "auto"
    value: Literal["best", "last"] = "best"
    timeout: Seconds | None = None
    parallel: PositiveInt = 1
    sampler: Literal["tpe", "random", "gp"] = "tpe"
    sampler_options: dict[str, Any] = field(default_factory=dict)
    pruner: Literal["none", "auto", "median", "asha", "hyperband"] = "none"
    reduction_factor: Annotated[int, Ge(2)] = 3
    min_steps: PositiveInt | None = None
    n_startup_trials: NonNegativeInt = 5
    warmup_steps: NonNegativeInt = 0
    first: list[dict[str, Any]] = field(default_factory=list)
    max_failures: NonNegativeInt = 1
    seed: NonNegativeInt = 0
    name: str | None = None


@dataclass(frozen=True)
class CompileSettings:
    code_keys = ("backend", "options")

    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = (
        "default"
    )
    fullgraph: bool = False
    dynamic: bool | None = False
    """With None, a graph depends on the shapes that came before, which a resume has not seen."""
    backend: str = "inductor"


SECTIONS: dict[str, type] = {
    "run": RunSettings,
    "paths": PathsSettings,
    "trainer": TrainerSettings,
    "hpo": HpoSettings,
}


@cache
def section(keys: type, takes_more: bool = False) -> Signature:
    """A section's keys as a signature."""
    hints = get_type_hints(keys, include_extras=True)
    parameters = []
    for setting in fields(keys):
        absent = UNKNOWN if callable(setting.default_factory) else REQUIRED
        default = absent if setting.default is MISSING else setting.default
        parameters.append(Parameter(setting.name, hints[setting.name], default))
    return Signature(keys.__name__.removesuffix("Settings").lower(), tuple(parameters), takes_more)
