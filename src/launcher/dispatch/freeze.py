"""Freeze the configuration of a job that a script submitted.

The command is `python -m launcher.dispatch.freeze FILE [OVERRIDE ...]`. It writes the run's folder
into FILE, for `launcher.dispatch.slurm.task` to run, or nothing for a run that is complete.
"""

import sys
from pathlib import Path

from launcher.config.compose.composer import command
from launcher.config.explain import explain, report
from launcher.dispatch.skip_reasons import folder_of, why_skipped
from launcher.errors import REJECTED, ConfigError
from launcher.process import import_path
from launcher.rundir.provenance import slurm_job_id
from launcher.slurm.submission import Submission, freeze


def main() -> int:
    """Return 2 for an invalid configuration, or a run that belongs to another job."""
    path, *overrides = sys.argv[1:]
    try:
        import_path.add_current_folder()
        folder = prepare(overrides)
        if folder is not None:
            Path(path).write_text(f"{folder}\n")
        return 0
    except Exception as error:
        messages = explain(error)
        if not messages:
            raise
        report(messages)
        return REJECTED


def prepare(overrides: list[str]) -> Path | None:
    """Compose, check and freeze a run; return its folder, or None if it is already complete."""
    with command(overrides) as words:
        config = words.run()
    if config.continued is not None:
        print(config.continuation, file=sys.stderr, flush=True)
    folder = folder_of(config)
    taken = why_skipped(config, folder, {})
    if taken == "running":
        raise ConfigError(
            f"run.dir='{folder.path}': is running; wait for it or stop it, or use run.tag=again."
        )
    if taken is not None:
        print(f"{folder.path} is {taken}: nothing to do.", flush=True)
        return None
    job = slurm_job_id()
    freeze(
        folder,
        config.stored,
        config.hydra,
        None if job is None else Submission(script="", job_id=job),
    )
    return folder.path


if __name__ == "__main__":
    sys.exit(main())
