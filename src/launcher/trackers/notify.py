"""tracker=notify: messages about a run through Apprise: Slack, mail, a webhook and many others.

The follower sends them, which outlives a killed run. What was sent is kept in the run's folder, so
each message goes out once, over all attempts and `runs sync`.
"""

from typing import Any, ClassVar, Literal, get_args

from launcher.errors import ConfigError
from launcher.rundir.record_format import AttemptData, RecordData
from launcher.trackers.base import Line, Tracker
from launcher.types import PositiveInt

Event = Literal["completed", "failed", "preempted", "stale", "best"]
STATES = {"completed": "completed", "failed": "failed", "killed": "stale", "preempted": "preempted"}
"""The event of each state in which a run may end."""


class NotSent(Exception):
    """A service did not take a message. It is tried again."""


class NotifyTracker(Tracker):
    """Reports events of a run by a messaging service.

    Args:
        service_url: Apprise's URL of a service, or several, separated by spaces.
        events: what is reported; `stale` is a run whose process was killed, `best` a new best
            value of the metric that the best checkpoint follows.
        every_preemptions: report each n-th preemption.
    """

    library: ClassVar[str] = "apprise"
    extra: ClassVar[str] = "notify"

    def __init__(
        self,
        service_url: str | None = None,
        events: list[Event] | None = None,
        every_preemptions: PositiveInt = 1,
    ):
        self.service_url, self.every_preemptions = service_url, every_preemptions
        self.events = list(get_args(Event)[:4] if events is None else events)
        self._sent: dict[str, Any] = {}

    def check(self, key: str, to_sync: bool = False) -> None:
        super().check(key, to_sync)
        if not self.service_url:
            raise ConfigError(
                f"{key}.service_url: is not set; export NOTIFY_URL=..., a URL of Apprise, e.g."
                " json://localhost:8080 or slack://tokens."
            )
        import apprise

        services = apprise.Apprise()
        # The URL itself is a secret, so it is not in the message.
        if not services.add(self.service_url):
            raise ConfigError(
                f"{key}.service_url: Apprise does not know this kind of URL; see"
                " https://appriseit.com/services."
            )

    def open(self) -> int:
        self._sent = self.run.stored("notify")
        return int(self._sent.get("step", -1))

    def write(self, lines: list[Line]) -> None:
        self._report_best()
        self._remember(step=int(lines[-1]["step"]))

    def close(self, state: str) -> None:
        self._report_best()
        event = STATES.get(state)
        if event is None or event not in self.events:
            return
        record, attempt = self.run.record, self.run.attempt
        number = attempt.get("number")
        if event == "preempted":
            # Who presses Ctrl-C knows it.
            count = sum(
                attempt.get("outcome") == "preempted" and attempt.get("signal") != "SIGINT"
                for attempt in record.get("attempts", ())
            )
            if attempt.get("signal") == "SIGINT" or count % self.every_preemptions:
                return
            times = f"{count} time{'s' * (count != 1)}"
            text = f"It was preempted {times}, now at step {record.get('step')}."
        else:
            text = self._ending(event, record, attempt)
        if self._sent.get("end") != f"{event} {number}":
            self._send(event, text)
            self._remember(end=f"{event} {number}")

    def _ending(self, event: str, record: RecordData, attempt: AttemptData) -> str:
        at = f"At step {record.get('step')} of {record.get('max_steps')}"
        best = record.get("best")
        if event == "failed":
            return f"{at}: {attempt.get('reason') or 'no reason is recorded'}"
        if event == "stale":
            host, pid = attempt.get("host"), attempt.get("pid")
            return f"{at}: process {pid} on {host} is gone; the same command resumes the run."
        value = "" if not best else f", best {best['metric']} {best['value']:.4g}"
        return f"{at}{value}."

    def _report_best(self) -> None:
        best = self.run.record.get("best")
        if "best" not in self.events or not isinstance(best, dict):
            return
        if self._sent.get("best") != best["value"]:
            self._send("best", f"{best['metric']} is {best['value']:.4g} at step {best['step']}.")
            self._remember(best=best["value"])

    def _send(self, event: str, text: str) -> None:
        import apprise

        services = apprise.Apprise()
        services.add(self.service_url)
        kinds = {"completed": "success", "failed": "failure", "stale": "failure"}
        title = f"{self.run.label}: {'new best' if event == 'best' else event}"
        kind = apprise.NotifyType(kinds.get(event, "info"))
        if not services.notify(title=title, body=text, notify_type=kind):
            names = ", ".join(str(service.service_name) for service in services)
            raise NotSent(f"the message '{event}' was not taken by {names}")

    def _remember(self, **values: object) -> None:
        self._sent = self.run.store("notify", {**self._sent, **values})
