"""One trial of a search: `python -m launcher.search.trial FILE`, started by `launcher.search.local`.

The file has a checked and resolved configuration. When the search ends, the trial saves and ends too.
"""

import sys
from pathlib import Path

from launcher.dispatch.rank import begin_as_child
from launcher.process import signals


def main() -> None:
    begin_as_child()
    try:
        train(Path(sys.argv[1]))
    finally:
        signals.ignore()


def train(file: Path) -> None:
    """
    Raises:
        SystemExit: the run was rejected, failed, or was stopped by a signal.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from launcher.cli.main import task
    from launcher.config import identity  # noqa: F401 - registers the resolvers

    job = OmegaConf.load(file)
    HydraConfig.instance().cfg = OmegaConf.create({"hydra": job.hydra})  # type: ignore[assignment]
    task(OmegaConf.create(OmegaConf.to_container(job.config)))  # type: ignore[arg-type]  # without a parent node


if __name__ == "__main__":
    main()
