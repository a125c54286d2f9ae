"""job=train. The training code is imported when needed: a run that is complete needs no torch."""

from collections.abc import Mapping
from typing import Any, Literal

from launcher.config.run_config import RunConfig
from launcher.jobs.complete import check_resume, nothing_to_do, why_done


class TrainJob:
    """Trains or resumes the run that the configuration names.

    Args:
        objective: metric whose value a sweeper gets (see `launcher.runs.objective`).
        value: whether the sweeper gets its best or its last value.
    """

    def __init__(
        self,
        objective: str | None = None,
        value: Literal["best", "last"] = "best",
    ):
        self.objective, self.value = objective, value

    def is_complete(self, config: Mapping[str, Any]) -> bool:
        """Return whether there is nothing to train, which is then logged, without torch.

        Args:
            config: resolved, as plain containers.
        """
        # Epochs depend on the data.
        return config["trainer"].get("max_epochs") is None and nothing_to_do(config)

    def why_done(self, config: Mapping[str, object]) -> str | None:
        """Return `completed`, `paused at step 20` or another reason not to train, or None.

        Args:
            config: resolved, as plain containers.
        """
        return why_done(config)

    def check_resume(self, config: Mapping[str, Any]) -> None:
        """Check that training would accept `run.resume`."""
        check_resume(config)

    def run(self, config: RunConfig) -> dict[str, object] | None:
        """Train the run to its end.

        Returns:
            The last value of each logged metric, for sweepers, or None for a run that was already
            complete.
        Raises:
            signals.SignalExit: it was stopped by a signal, and the checkpoint is durable.
            ConfigError: the run was rejected, and nothing was written.
        """
        from launcher.jobs.run_attempt import train

        return train(config)
