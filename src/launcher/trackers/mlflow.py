"""tracker=mlflow, by default with a SQLite database next to the runs."""

import fcntl
import logging
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from launcher.config.messages import reason
from launcher.config.tree import leaves
from launcher.errors import ConfigError
from launcher.trackers.base import NOT_ENDED, Line, Names, Tracker, numbers

DEFAULT_EXPERIMENT = "launcher"
RUN_TAG = "launcher.run"
STEP_TAG = "launcher.step"
STATE_TAG = "launcher.state"
MODEL_TAG = "launcher.model"
MODEL_NAME = r"(?!\.\.?$)[^/:]{1,250}"
"""Pattern of the names that MLflow accepts."""
NAMES = "names"
"""Key of MLflow's names of metrics in the run's folder."""
BATCH = "batch"
"""Key of the newest batch in the run's folder: MLflow's id of the run, the last step, and the
rows."""
STATUS = {"completed": "FINISHED", "failed": "FAILED"}
LOADER = "launcher.resume.mlflow_model"
"""The module whose `_load_pyfunc` MLflow calls to load a model."""
METRICS = 1000
PARAMS = 100
LENGTH = 6000
NAME_LENGTH = 250
"""MLflow's limits: metrics per batch, parameters per batch, characters of a parameter's value and
of a name."""
REJECTED = "INVALID_PARAMETER_VALUE"
"""MLflow's error code for what another try would not change."""

logger = logging.getLogger("launcher.trackers")


class MlflowTracker(Tracker):
    """Sends a run to MLflow.

    The last step that MLflow has is a tag, set after each batch. MLflow keeps equal rows once, so
    an interrupted batch may be sent again. But a step that is computed again has other times, so a
    batch is first stored in the run's folder, and sent again unchanged.

    Args:
        tracking_uri: URI of the server. Default null: MLFLOW_TRACKING_URI, else a SQLite database
            `mlflow.db` in the folder of all runs.
        experiment: name of the experiment. Default null: MLFLOW_EXPERIMENT_NAME, else "launcher".
        name: the run's name in MLflow. Default null: <run.name>/<run.id>.
        tags: the run's tags.
        artifacts: artifacts that are sent when the run is complete.
        registered_model_name: register the model of a complete run under this name.
        model: the artifact that is registered, and the version's alias.
    """

    library = "mlflow"
    extra = "mlflow"

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        name: str | None = None,
        tags: dict[str, object] | None = None,
        artifacts: list[Literal["best", "last", "export"]] | None = None,
        registered_model_name: str | None = None,
        model: Literal["best", "last", "export"] = "best",
    ):
        self.tracking_uri = tracking_uri
        self.experiment = experiment
        self.name = name
        self.tags = dict(tags or {})
        self.registered_model_name = registered_model_name
        self.model = model
        registered = [model] if registered_model_name else []
        self.artifacts = list(dict.fromkeys([*(artifacts or []), *registered]))
        self.not_sent: dict[str, str] = {}

    def check(self, key: str, to_sync: bool = False) -> None:
        super().check(key, to_sync)
        name = self.registered_model_name
        if name is not None and not re.fullmatch(MODEL_NAME, name):
            raise ConfigError(f"{key}.registered_model_name={name!r}: use a name without / and :.")
        uri = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite"
        if uri.startswith("sqlite"):
            self.require(key, "sqlalchemy")

    def open(self) -> int:
        # The follower retries by itself.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        uri = self.uri
        with one_at_a_time(uri):
            from mlflow.tracking import MlflowClient

            self._client = MlflowClient(tracking_uri=uri)
            run = self._find() or self._create()
        self._id = run.info.run_id
        self._client.update_run(self._id, status="RUNNING")
        self._send_params(set(run.data.params))
        self.address = f"{uri}, run {self._id}"
        step = int(run.data.tags.get(STEP_TAG, -1))
        batch = self.run.stored("mlflow").get(BATCH, {})
        if batch.get("run") == self._id and batch["step"] > step:
            self._send(batch)
            return int(batch["step"])
        return step

    def write(self, lines: list[Line]) -> None:
        if not lines:
            return
        for line in lines:
            for item in line.get("media", ()):
                self._send_item(item)
        names = self.run.stored("mlflow").get(NAMES, {})
        name = Names(clean, names)
        rows = [
            (name(key), value, int(line["time"] * 1000), line["step"])
            for line in lines
            for key, value in numbers(line).items()
        ]
        batch = {"run": self._id, "step": lines[-1]["step"], "rows": rows}
        self.run.store("mlflow", **{NAMES: names, BATCH: batch})
        self._send(batch)

    def _send_item(self, item: Line) -> None:
        """Send an image or a text. MLflow has no histograms."""
        if item["kind"] == "image":
            path = self.run.folder.path / item["path"]
            self._client.log_artifact(self._id, path, f"images/{item['step']}")
        elif item["kind"] == "text":
            path = f"texts/{item['step']}/{clean(item['key'])}.txt"
            self._client.log_text(self._id, item["text"], path)

    def _send(self, batch: dict[str, Any]) -> None:
        from mlflow.entities import Metric

        for start in range(0, len(batch["rows"]), METRICS):
            rows = [Metric(*row) for row in batch["rows"][start : start + METRICS]]
            self._send_accepted(rows, "metrics")
        self._client.set_tag(self._id, STEP_TAG, batch["step"])

    def _send_accepted(self, items: list[Any], field: str) -> None:
        """Send metrics or parameters, except for those that MLflow rejects."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(self._id, **{field: items})
        except MlflowException as error:
            if error.error_code != REJECTED:
                raise
            if len(items) == 1:
                self.not_sent[items[0].key] = reason(error)
                return
            for half in (items[: len(items) // 2], items[len(items) // 2 :]):
                self._send_accepted(half, field)

    def close(self, state: str) -> None:
        if state == "running":
            return
        if state == "completed":
            artifacts = self.find_artifacts()
            for which, path in artifacts.items():
                self._send_artifact(which, path)
            self.note_artifacts(artifacts)
        self._client.set_tag(self._id, STATE_TAG, state)
        if state in NOT_ENDED:
            # `set_terminated` would record the time of its end.
            self._client.update_run(self._id, status="SCHEDULED")
        else:
            self._client.set_terminated(self._id, STATUS.get(state, "KILLED"))

    @property
    def uri(self) -> str:
        """Return the tracking server. It is stored in the run's folder, for other machines."""
        before = self.run.stored("mlflow").get("tracking_uri")
        chosen = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or before
        if chosen != before:
            self.run.store("mlflow", tracking_uri=chosen)
        if chosen:
            return str(chosen)
        return f"sqlite:///{self._outputs / 'mlflow.db'}"

    @property
    def _outputs(self) -> Path:
        return self.run.folder.path.absolute().parents[len(Path(self.run.name).parts)]

    def _experiment(self) -> str:
        """Return the experiment's id. It is created if it does not exist."""
        name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or DEFAULT_EXPERIMENT
        experiment = self._client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        is_local = self.uri.startswith("sqlite")
        location = (self._outputs / "mlflow-artifacts" / clean(name)).as_uri() if is_local else None
        return str(self._client.create_experiment(name, artifact_location=location))

    def _find(self) -> Any:
        run_id = self.run.stored("mlflow")["id"]
        runs = self._client.search_runs([self._experiment()], f"tags.`{RUN_TAG}` = '{run_id}'")
        return runs[0] if runs else None

    def _create(self) -> Any:
        tags = {
            RUN_TAG: self.run.stored("mlflow")["id"],
            "launcher.folder": str(self.run.folder.path.absolute()),
        }
        if self.run.sweep:
            tags["launcher.sweep"] = self.run.sweep
        started = (self.run.record.get("attempts") or [{}])[0].get("started")
        return self._client.create_run(
            self._experiment(),
            run_name=self.name or self.run.label,
            tags=tags | {clean(key): value for key, value in self.tags.items()},
            start_time=started and int(datetime.fromisoformat(started).timestamp() * 1000),
        )

    def _send_params(self, sent_keys: set[str]) -> None:
        """Send the configuration by dotted keys. MLflow keeps the first attempt's values."""
        from mlflow.entities import Param

        name = Names(clean, {})
        config = leaves(self.sent_config())
        params = [Param(name(key), str(value)[:LENGTH]) for key, value in config.items()]
        params = [param for param in params if param.key not in sent_keys]
        for start in range(0, len(params), PARAMS):
            self._send_accepted(params[start : start + PARAMS], "params")

    def _send_artifact(self, which: str, path: Path) -> None:
        self._client.log_artifacts(self._id, str(path), which)
        self._client.log_text(self._id, self._description(which), f"{which}/MLmodel")
        if self.registered_model_name and which == self.model:
            self._register(which, path)

    def _description(self, which: str) -> str:
        """Return the file MLmodel, which makes a folder a model for `mlflow.pyfunc.load_model`."""
        from mlflow.models.model import Model

        model = Model(artifact_path=which, run_id=self._id)
        model.add_flavor(
            "python_function", loader_module=LOADER, python_version=platform.python_version()
        )
        return str(model.to_yaml())

    def _register(self, which: str, path: Path) -> None:
        """Register the artifact once, even if an earlier try was interrupted."""
        from mlflow.exceptions import MlflowException

        name = self.registered_model_name
        try:
            self._client.get_registered_model(name)
        except MlflowException:
            self._client.create_registered_model(name)
        version_id = f"{self._id}/{path.name}"
        same = self._client.search_model_versions(f"tags.`{MODEL_TAG}` = '{version_id}'")
        version = next((version for version in same if version.name == name), None)
        if version is None:
            source = f"runs:/{self._id}/{which}"
            version = self._client.create_model_version(
                name, source, self._id, {MODEL_TAG: version_id}
            )
        self._client.set_registered_model_alias(name, self.model, version.version)
        logger.info("MLflow: registered %s, version %s", name, version.version)


def clean(name: str) -> str:
    """Return a name that MLflow accepts: its characters, and a path that it would not change."""
    parts = re.sub(r"[^\w./ :-]", "_", name).split("/")
    cleaned = [re.sub(r"^\.\.", "__", part) for part in parts if part not in ("", ".")]
    return "/".join(cleaned)[: NAME_LENGTH - 10].rstrip("/") or "_"


@contextmanager
def one_at_a_time(uri: str) -> Iterator[None]:
    """Let one process at a time create a SQLite database: of several at once, all but one fail."""
    if not uri.startswith("sqlite:///"):
        yield
        return
    path = Path(uri.removeprefix("sqlite:///"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
