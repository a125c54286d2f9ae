"""An empty MLflow database: creating one takes twenty seconds, so it is created once and copied."""

import fcntl
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path


def copy_database(target: Path) -> str:
    """The tracking URI of a new database at `target`."""
    template = Path(tempfile.gettempdir()) / f"launcher-tests-mlflow-{version('mlflow-skinny')}.db"
    with open(template.with_suffix(".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not template.exists():
            from mlflow.tracking import MlflowClient

            unfinished = template.with_suffix(".tmp")
            unfinished.unlink(missing_ok=True)
            MlflowClient(tracking_uri=f"sqlite:///{unfinished}").search_experiments()
            unfinished.rename(template)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(template, target)
    return f"sqlite:///{target}"
