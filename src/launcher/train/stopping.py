"""Whether a signal ends training at a step boundary: all ranks agree on it."""

from launcher.hooks.base import TrainState
from launcher.run import signals
from launcher.run.ranks import Agreement, maximum


class Stopping:
    """
    Args:
        agreement: its exchange begins before an optimizer's step and ends at the boundary after it.
    """

    def __init__(self, agreement: Agreement):
        self._agreement = agreement
        self._agreed = 0
        self._agreed_at = -1
        self._repeats = -1
        """The step at which something was interrupted. It is not complete, even if it is the last one."""

    def signal(self, state: TrainState) -> int:
        """The signal on which all ranks end training at this boundary; 0: training continues."""
        if self._agreed_at != state.step:
            self._agreed, self._agreed_at = self._agreement.result(signals.received()), state.step
        is_complete = self._agreed and state.is_at_end() and self._repeats != state.step
        return 0 if is_complete else self._agreed  # a run that has ended is completed, not stopped

    def ask_again(self) -> None:
        """Let the next `signal` agree again, for a boundary that was reached without an optimizer's step."""
        self._agreed_at = -1

    def stop_here(self, state: TrainState) -> None:
        """End training here, since something was interrupted that the resumed run repeats. All ranks must call it."""
        self.signal(state)
        self._agreed, self._repeats = maximum(signals.received()), state.step
