"""A child of a command, or a task of a SLURM job: it reads a stored configuration and runs it.

`python -m launcher.dispatch.child_job KIND PATH [RESULT]`. The kinds are

- `job`: of a sweep, a search or a proof. PATH is a file that `RunConfig.save` has written, and
  RESULT gets the value that the job returns.
- `rank`: one of several, see `launcher.dispatch.rank`. PATH is the folder of the job's file.
- `node`: which forks children of the other kinds, see `launcher.dispatch.node_process`.
- `task`: of a SLURM job, see `launcher.dispatch.slurm.task`. PATH is the folder of a submitted run.

If a command has launched it, it saves and ends when the command ends.
"""

import json
import os
import sys
from pathlib import Path

from launcher.process import collector, import_path, signals, user_exits
from launcher.process.parent import follow_parent
from launcher.process.process_id import PARENT
from launcher.process.quick_end import quick_end
from launcher.rundir.logs import prepare_output
from launcher.rundir.provenance import SNAPSHOT


def main() -> None:
    """Run what the arguments say, or what a child of this process is asked for."""
    if sys.argv[1] == "node":
        from launcher.dispatch.node_process import serve

        with quick_end():
            arguments = serve(int(sys.argv[2]), sys.argv[3:])
            if arguments is not None:
                sys.argv[1:] = arguments
                _run()
    else:
        _run()


def _run() -> None:
    role, path, *result = sys.argv[1:]
    if role == "rank":
        from launcher.dispatch.rank import note_signals

        note_signals(Path(path))
    _begin()
    try:
        code = run_child(role, Path(path), *map(Path, result))
    # SLURM signals the job again while Python exits, which would change the exit code.
    finally:
        user_exits.begin_exit()
    sys.exit(code)


def run_child(role: str, path: Path, result: Path | None = None) -> int:
    """Run the configuration; return the exit code."""
    if role == "rank":
        from launcher.dispatch.rank import run_rank

        return run_rank(path)
    if role == "task":
        from launcher.dispatch.slurm.task import run_task

        return run_task(path)
    from launcher.config.run_config import load_job
    from launcher.dispatch.start import start_run

    value = start_run(load_job(path))
    if result is not None:
        result.write_text(json.dumps(value, default=str))
    return 0


def _begin() -> None:
    """Install the handlers, watch the parent, and find the user's modules."""
    signals.install()
    prepare_output()
    collector.pause()
    if PARENT in os.environ:
        follow_parent(int(os.environ[PARENT]))
    # The current folder comes after a snapshot of the code, which is on PYTHONPATH.
    place = len(sys.path) if SNAPSHOT in os.environ else 0
    import_path.add_current_folder(place)


if __name__ == "__main__":
    main()
