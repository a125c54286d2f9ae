"""job=train. The training code is imported when needed: a run that is complete needs no torch."""

from dataclasses import dataclass
from typing import Literal

from launcher.config.run_config import RunConfig
from launcher.process.signals import SignalExit, report_early


@dataclass
class TrainJob:
    """Trains or resumes the run that the configuration names.

    Args:
        objective: metric whose value a sweeper gets (see `launcher.runs.objective`).
        value: whether the sweeper gets its best or its last value.
    """

    trains = True

    objective: str | None = None
    value: Literal["best", "last"] = "best"

    def run(self, config: RunConfig) -> dict[str, object] | None:
        """Train the run to its end.

        Returns:
            The last value of each logged metric, or None for a run that was complete already.
        """
        from launcher.process.ranks import Ranks
        from launcher.train.attempt import train_run

        try:
            return train_run(config)
        except SignalExit as stop:
            if Ranks.from_env().is_main:
                report_early(stop)
            raise
