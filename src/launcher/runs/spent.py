"""The cost of a run: its time by phase, device hours, and money."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from launcher.config import plain_yaml
from launcher.errors import ConfigError
from launcher.rundir.files import expanded
from launcher.runs.format import duration, seconds_of
from launcher.runs.stored_run import StoredRun

PARTS = ("queued", "starting", "computing", "repeating", "evaluating", "saving")
CURRENCY = "currency"


@dataclass
class Spent:
    """Seconds by phase of a run (`PARTS`), and seconds of devices by their kind.

    All attempts count.
    """

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    devices: dict[str, float] = field(default_factory=dict)

    def __add__(self, more: "Spent") -> "Spent":
        return Spent(_sums(self.seconds, more.seconds), _sums(self.devices, more.devices))

    @property
    def device_hours(self) -> float:
        return sum(self.devices.values()) / 3600

    @property
    def ratio(self) -> float | None:
        """Return the effective training time ratio.

        It is the share of all the run's time, including the queue, in which the run computed steps
        that were not lost.
        """
        total = sum(self.seconds.values())
        return self.seconds["computing"] / total if total else None

    def line(self) -> str:
        """Format the cost in a line.

        For example, `2.3 device hours, 91 % effective (queued 3m, starting 20s, computing 2h)`.
        """
        parts = ", ".join(
            f"{name} {duration(self.seconds[name])}" for name in PARTS if self.seconds[name] >= 1
        )
        share = "" if self.ratio is None else f", {self.ratio:.0%} effective".replace("%", " %")
        return f"{hours(self.device_hours)} device hours{share}{f' ({parts})' if parts else ''}"


def _sums(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {
        name: one.get(name, 0.0) + other.get(name, 0.0)
        for name in (*one, *(other.keys() - one.keys()))
    }


def hours(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def spent(run: StoredRun, now: float) -> Spent:
    """Compute the cost of a run so far.

    Args:
        run: the run.
        now: current time in seconds since the epoch, which is the end of an attempt that still
            runs.
    """
    result = Spent()
    kept_from = kept(run.attempts)
    for attempt, last_kept in zip(run.attempts, kept_from, strict=True):
        result += spent_by(attempt, *span(run, attempt, now), last_kept, run.record.get("step"))
    return result


def kept(attempts: Sequence[Mapping[str, Any]]) -> list[int | None]:
    """Return the step from which on the work of each attempt was lost.

    It is the earliest step at which a later attempt started, or None for the last.
    """
    starts = [attempt["start_step"] for attempt in attempts]
    return [min(starts[index + 1 :], default=None) for index in range(len(starts))]


def span(run: StoredRun, attempt: Mapping[str, Any], now: float) -> tuple[float, float]:
    """Return begin and end of an attempt, in seconds since the epoch.

    An attempt without an end lasts until now, or until the last write of a process that is gone.
    """
    begin = seconds_of(attempt.get("launched")) or seconds_of(attempt.get("started")) or now
    end = seconds_of(attempt.get("ended"))
    if end is None:
        end = now if run.state == "running" else run.updated or now
    return begin, max(begin, end)


def spent_by(
    attempt: Mapping[str, Any], begin: float, end: float, last_kept: int | None, step: int | None
) -> Spent:
    """Compute the cost of one attempt.

    Args:
        attempt: the attempt in run.json.
        begin: see `span`.
        end: see `span`.
        last_kept: see `kept`.
        step: step of the run, for an attempt that has not ended.
    """
    first, last = attempt["start_step"], attempt.get("end_step")
    last = (step or 0) if last is None else last
    steps = max(0, last - first)
    lost = 0 if last_kept is None else max(0, min(steps, last - last_kept))
    noted = attempt.get("seconds") or {}
    known = {name: float(noted.get(name, 0.0)) for name in ("starting", "evaluating", "saving")}
    # It has not reached its first step.
    if "starting" not in noted and not steps:
        known["starting"] = max(0.0, end - begin - sum(known.values()))
    training = max(0.0, end - begin - sum(known.values()))
    known["repeating"] = training * lost / steps if steps else 0.0
    known["computing"] = training - known["repeating"]
    queued = seconds_of(attempt.get("queued"))
    known["queued"] = 0.0 if queued is None else max(0.0, begin - queued)
    ranks = attempt.get("world_size") or 1
    return Spent(known, {attempt.get("device") or "unknown": (end - begin) * ranks})


# -------------------------------------------------------------------------------------------- money
@dataclass(frozen=True)
class Prices:
    """The price of an hour of a device, by a part of its name."""

    by_device: Mapping[str, float]
    currency: str = ""

    @classmethod
    def read(cls, file: Path, key: str) -> "Prices":
        """Read a YAML file: `{currency: EUR, H200: 3.2, cpu: 0.05}`.

        Args:
            file: the file.
            key: key that named the file, for messages.
        Raises:
            ConfigError: it cannot be read, or a price is not a number.
        """
        try:
            data = plain_yaml.load(expanded(file).read_text())
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{key}={file}: cannot be read ({type(error).__name__}).") from error
        if not isinstance(data, dict):
            raise ConfigError(
                f"{key}={file}: should map devices to prices of an hour; e.g. H200: 3.2."
            )
        currency = str(data.pop(CURRENCY, ""))
        for name, price in data.items():
            if (
                isinstance(price, bool)
                or not isinstance(price, int | float)
                or not 0 <= price < float("inf")
            ):
                raise ConfigError(
                    f"{key}={file}: {name}: {price} is not the price of an hour; e.g. {name}: 3.2."
                )
        return cls({str(name): float(price) for name, price in data.items()}, currency)

    def price(self, device: str) -> float | None:
        """Return the price of an hour of a device, or None without a price.

        Of several names that are part of the device's name, the longest has the price.
        """
        names = [name for name in self.by_device if name.lower() in device.lower()]
        return self.by_device[max(names, key=len)] if names else None

    def of(self, spent: Spent) -> float | None:
        """Return the price of all device hours, or None if one of them has no price."""
        prices = [(self.price(device), seconds) for device, seconds in spent.devices.items()]
        return (
            None
            if any(price is None for price, _ in prices)
            else sum((p or 0) * s / 3600 for p, s in prices)
        )

    def text(self, money: float | None) -> str:
        return "-" if money is None else f"{money:,.2f} {self.currency}".rstrip()


def prices_of(runs: Iterable[StoredRun]) -> Prices | None:
    """Read the prices that the newest run with `paths.prices` names.

    Returns:
        None if no run names a file, or the file is gone.
    """
    named = [run for run in runs if run.settings.get("paths.prices") is not None]
    if not named:
        return None
    file = expanded(str(max(named, key=lambda run: run.started).settings["paths.prices"]))
    return Prices.read(file, "paths.prices") if file.is_file() else None
