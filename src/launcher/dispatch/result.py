"""The result of a job of a sweep."""

from dataclasses import dataclass


@dataclass(frozen=True)
class JobResult:
    """The value that a job has returned, or its error."""

    value: object = None
    error: BaseException | None = None
