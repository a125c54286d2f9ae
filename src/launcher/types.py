"""Bounded types for constructor signatures.

A constructor's signature is its configuration schema (see `launcher.config.schema.signature`), so
bounds are written at the argument, as in `lr: PositiveFloat`. Nothing heavy is imported here.
"""

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen

PositiveInt = Annotated[int, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Seconds = Annotated[float, Gt(0), Le(1_000_000_000)]
"""A time limit. Clocks and queues overflow after some more years."""
Delay = Annotated[float, Ge(0), Le(1_000_000_000)]
ExitCode = Annotated[int, Ge(0), Le(255)]
Fraction = Annotated[float, Ge(0), Le(1)]
Size = Annotated[float, Ge(0)] | Literal["auto"]
"""A number of values, which may be written as 5e8. With auto, the library chooses."""
NonEmptyText = Annotated[str, MinLen(1)]
"""A path or a URL. An unset variable of the shell leaves an empty one."""
UnitInterval = Annotated[float, Ge(0), Lt(1)]
ParameterKind = Literal["norms", "biases", "embeddings"]
Patterns = str | list[str]
"""A path or glob of files, or several."""
NumWorkers = Annotated[int, Ge(0), Le(1024)]
