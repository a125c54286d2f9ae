"""One job as a process of its own: `python -m launcher.cli.job FILE [RESULT]`.

FILE has a checked and resolved configuration; RESULT gets the value that the job returns. When the
command that launched it ends, the job saves and ends too.
"""

import json
import sys
from pathlib import Path

from launcher.dispatch.rank import begin_as_child
from launcher.process import signals


def main() -> None:
    begin_as_child()
    try:
        value = run(Path(sys.argv[1]))
        for result in sys.argv[2:]:
            Path(result).write_text(json.dumps(value, default=str))
    finally:
        signals.ignore()


def run(file: Path) -> object:
    """Run the job of a file; return what it returns, or raise a SystemExit."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from launcher.cli.main import task
    from launcher.config import identity  # noqa: F401 - registers the resolvers

    job = OmegaConf.load(file)
    HydraConfig.instance().cfg = OmegaConf.create({"hydra": job.hydra})  # type: ignore[assignment]
    # The copy has no parent node.
    return task(OmegaConf.create(OmegaConf.to_container(job.config)))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
