"""tracker=wandb, for Weights & Biases."""

import configparser
import html
import logging
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from annotated_types import MaxLen, MinLen

from launcher.errors import ConfigError
from launcher.process.files import expand
from launcher.rundir.lock_holder import find_local_holder, signal_holder
from launcher.trackers.base import NOT_ENDED, Line, Stored, Tracker, numbers

DEFAULT_PROJECT = "launcher"
DEFAULT_URL = "https://api.wandb.ai"
MAX_NAME_LENGTH = 128
"""Maximum number of characters of a project, and of a run's name and group."""
NOT_IN_PROJECT = "/\\#?%:"
ARRIVAL_CHECKS = 10
"""Number of checks, a second apart, after which the steps that a server lacks are sent again."""

logger = logging.getLogger("launcher.trackers")


class WandbTracker(Tracker):
    """Sends a run to Weights & Biases.

    The server reports the last step that it has. A run keeps its id on the server over restarts,
    preemptions and machines, since the id is stored in the run's folder.

    Args:
        project: name of the project. Default null: WANDB_PROJECT, else "launcher".
        entity: a user or a team. Default null: the account's default.
        name: the run's name. Default null: <run.name>/<run.id>.
        group: the run's group. Default null: the sweep that the run belongs to.
        job_type: the run's job type.
        tags: tags in addition to WANDB_TAGS.
        notes: a text about the run.
        mode: with offline, nothing is sent before `launcher.runs sync`. Default null: WANDB_MODE,
            else online.
        image_format: format of images. jpeg is smaller, and transparent pixels become white.
        artifacts: artifacts that are sent when the run is complete.
        init: further arguments of wandb.init.
        settings: further arguments of wandb.Settings.
    """

    library = "wandb"
    extra = "wandb"

    def __init__(
        self,
        project: str | None = None,
        entity: str | None = None,
        name: str | None = None,
        group: str | None = None,
        job_type: str | None = "train",
        tags: list[Annotated[str, MinLen(1), MaxLen(64)]] | None = None,
        notes: str | None = None,
        mode: Literal["online", "offline"] | None = None,
        image_format: Literal["png", "jpeg"] = "png",
        artifacts: list[Literal["best", "last", "export"]] | None = None,
        init: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
    ):
        self.project = project or os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT
        self.entity = entity
        self.name = name
        self.group = group or os.environ.get("WANDB_RUN_GROUP")
        words = filter(None, os.environ.get("WANDB_TAGS", "").split(","))
        self.tags = list(dict.fromkeys([*(tags or ()), *words]))
        self.job_type = job_type
        self.notes = notes
        self.artifacts = artifacts or []
        self.image_format = image_format
        self.init = dict(init or {})
        self.settings = dict(settings or {})
        self.waits_for_sync = (mode or os.environ.get("WANDB_MODE") or "online") != "online"
        self._wandb_run: Any = None
        self._is_connecting = False

    def check(self, key: str, to_sync: bool = False) -> None:
        super().check(key)
        self._check_names(key)
        url = self.settings.get("base_url") or base_url()
        needs_key = to_sync or not self.waits_for_sync
        if needs_key and not (self.settings.get("api_key") or has_key(url)):
            way = "run `wandb login`, or set WANDB_API_KEY"
            if not to_sync:
                way += f", or use {key}.mode=offline and send the run later with launcher.runs sync"
            raise ConfigError(f"{key}: no API key for {urlsplit(url).hostname}; {way}.")

    def _check_names(self, key: str) -> None:
        """Check the rules of W&B for names, which its library checks when the run is sent."""
        names = {"project": self.project, "group": self.group, "name": self.name}
        for what, name in names.items():
            if name is not None and len(name) > MAX_NAME_LENGTH:
                raise ConfigError(
                    f"{key}.{what}={name}: has {len(name)} characters; W&B takes at most"
                    f" {MAX_NAME_LENGTH}."
                )
        wrong = [character for character in NOT_IN_PROJECT if character in self.project]
        if wrong:
            raise ConfigError(
                f"{key}.project={self.project}: has a {wrong[0]}, which W&B does not take in the"
                f" name of a project; leave out {' '.join(NOT_IN_PROJECT)}."
            )

    def open(self) -> int:
        if "wandb" not in sys.modules:
            # A process that uses wandb itself has set it.
            os.environ.pop("WANDB_SERVICE", None)
        import wandb

        if self._is_connecting:
            self._give_up()
        self._is_connecting = True
        stored = self.run.stored("wandb")
        if "project" not in stored:
            stored = self.run.store("wandb", **self._choose_names(stored["id"]))
        run = wandb.init(**self._arguments(stored), settings=self._settings())
        self._wandb_run = run
        self.run.store("wandb", url=run.url)
        run.define_metric("step", hidden=True)
        run.define_metric("*", step_metric="step")
        self.address = run.url or ""
        self._step = int(run.starting_step) - 1
        return self._step

    def _arguments(self, stored: Stored) -> dict[str, Any]:
        return {
            **{key: stored[key] for key in ("id", "project", "entity", "group")},
            "name": self.name or self.run.label[-MAX_NAME_LENGTH:],
            "job_type": self.job_type,
            "notes": self.notes,
            "tags": self.tags,
            "dir": self.run.folder.path,
            "mode": "online",
            "resume": "allow",
            "config": self.sent_config(),
            "allow_val_change": True,
            "reinit": "create_new",
            **self.init,
        }

    def _settings(self) -> Any:
        import wandb

        settings: dict[str, Any] = {
            "console": "off",
            "silent": True,
            "init_timeout": 30,
            "finish_timeout": 1800 if self.artifacts else 60,
            "finish_timeout_raises": True,
            "save_code": False,
            "x_file_stream_transmit_interval": 2,
            "stop_fn": self.stop,
        }
        holder = find_local_holder(self.run.folder)
        settings |= {"x_disable_stats": True} if holder is None else {"x_stats_pid": holder.pid}
        return wandb.Settings(**settings | self.settings)

    def write(self, lines: list[Line]) -> None:
        for line in lines:
            values: dict[str, Any] = {
                key: line[key] for key in ("step", "samples", "epoch", "attempt") if key in line
            }
            values |= numbers(line) | {"_timestamp": line["time"]}
            values |= {item["key"]: self._media(item) for item in line.get("media", ())}
            self._wandb_run.log(values, step=line["step"], commit=True)
            self._step = line["step"]

    def _media(self, item: Line) -> object:
        import wandb

        if item["kind"] == "image":
            return self._image(self.run.folder.path / item["path"])
        if item["kind"] == "histogram":
            return wandb.Histogram(np_histogram=(item["counts"], item["edges"]))
        return wandb.Html(f"<pre>{html.escape(item['text'])}</pre>")

    def close(self, state: str) -> None:
        run = self._wandb_run
        best = self.run.record.get("best")
        if best:
            run.summary.update(
                {f"best/{best['metric']}": float(best["value"]), "best/step": best["step"]}
            )
        artifacts = self.find_artifacts() if state == "completed" else {}
        for which, path in artifacts.items():
            self._send_artifact(which, path)
        if state == "preempted":
            run.mark_preempting()
        run.finish(exit_code=0 if state in ("completed", *NOT_ENDED) else 1)
        self._is_connecting = False
        self._check_arrival()
        self.note_artifacts(artifacts)

    def _check_arrival(self) -> None:
        """Compare the last step that the server has with the last one that was sent.

        After a rejection (HTTP 403, say), wandb drops the rest of a run's history, and `finish`
        does not report it.
        """
        import wandb

        run = self._wandb_run
        url = {"base_url": run.settings.base_url}
        api = wandb.Api(url, api_key=self.settings.get("api_key"))
        arrived = -1
        for _ in range(ARRIVAL_CHECKS):
            # A new object each time, since wandb keeps the answer.
            arrived = int(api.run(f"{run.entity}/{run.project}/{run.id}").lastHistoryStep)
            if arrived >= self._step:
                return
            time.sleep(1.0)
        raise ConnectionError(f"the server has the steps up to {arrived}, not to {self._step}")

    def stop(self) -> None:
        """Stop the training process, which saves first. The same command resumes it.

        In a SLURM job the signal is SIGINT as with Ctrl-C, after which the job is not requeued.
        """
        holder = find_local_holder(self.run.folder)
        if holder is None:
            logger.warning(
                "W&B: stop requested, but %s is not running on this machine.", self.run.label
            )
            return
        signum = signal.SIGINT if holder.slurm_job_id else signal.SIGTERM
        if signal_holder(self.run.folder, holder, signum):
            logger.warning("Stopped on the W&B page.")

    def _choose_names(self, own_id: str) -> dict[str, object]:
        """Return the run's names on the server, which stay the same from now on."""
        return {
            "id": os.environ.get("WANDB_RUN_ID") or re.sub(r"[/\\#?%:]", "-", own_id),
            "project": self.project,
            "entity": self.entity or os.environ.get("WANDB_ENTITY"),
            "group": self.group or (self.run.sweep and self.run.sweep[:MAX_NAME_LENGTH]),
        }

    def _give_up(self) -> None:
        """Drop a failed connection. Its unsent data are sent again."""
        import wandb

        try:
            wandb.teardown(exit_code=1)
        except (Exception, SystemExit) as error:
            # wandb exits with the code of its own process, if that was killed.
            logger.debug("wandb.teardown: %s", error)

    def _image(self, path: Path) -> object:
        import wandb

        if self.image_format == "png":
            return wandb.Image(str(path))
        from PIL import Image

        with Image.open(path) as image:
            layered = image.convert("RGBA")
            white = Image.new("RGBA", layered.size, "white")
            return wandb.Image(
                Image.alpha_composite(white, layered).convert("RGB"), file_type="jpg"
            )

    def _send_artifact(self, which: str, path: Path) -> None:
        """Begin to send an artifact, for which `finish` waits."""
        import wandb

        name = re.sub(r"[^\w.-]", "-", f"{self.run.name}-{self.run.id}-{which}")
        metadata = {"run": self.run.label, "of": path.name}
        artifact = wandb.Artifact(name, type="model", metadata=metadata)
        # The folder is sent from its place, not copied first.
        artifact.add_dir(str(path), policy="immutable")
        self._wandb_run.log_artifact(artifact, aliases=[*dict.fromkeys([which, path.name])])


def base_url() -> str:
    """Return the server's address, as wandb finds it."""
    folder = expand(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb")
    settings = configparser.ConfigParser(default_section="default")
    try:
        settings.read([folder / "settings", Path("wandb") / "settings"])
    except configparser.Error:
        pass
    return os.environ.get("WANDB_BASE_URL") or settings.defaults().get("base_url") or DEFAULT_URL


def has_key(url: str) -> bool:
    """Return whether wandb will find an API key. Nothing is sent."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    # requests is a dependency of wandb, and reads the same files.
    from requests.utils import get_netrc_auth

    return get_netrc_auth(url) is not None
