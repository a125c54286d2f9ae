import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from slurm import lab as labs

# They start clusters and take minutes; until they are known to be steady on a loaded machine they are asked for.
collect_ignore_glob = [] if os.environ.get("LAUNCHER_SLURM_TESTS") else ["test_*.py"]


@pytest.fixture(scope="session")
def start_lab():
    """Starts clusters; all are stopped at the end. Their daemons run under users of their own, who enter no folder of
    pytest's."""
    if reason := labs.impossible():
        (pytest.fail if labs.REQUIRED else pytest.skip)(reason)
    started = []

    def start(**settings):
        port = 20000 + os.getpid() % 100 * 100 + len(started) * 50  # below those that the kernel hands out
        folder = Path(tempfile.mkdtemp(prefix="slurm-lab-"))
        folder.chmod(0o755)
        lab = labs.Lab(folder / "lab", port, {"MESSAGE_TIMEOUT": "5", "GRACE": "12", **settings})
        started.append(lab)
        lab.start()
        return lab

    yield start
    for lab in started:
        lab.stop()
        shutil.rmtree(lab.state.parent, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(start_lab):
    """Sends a job's own signal at a preemption; has accounting."""
    return start_lab(NODES="16")


@pytest.fixture(scope="session")
def plain_cluster(start_lab):
    """Sends SIGTERM at a preemption; has no accounting, so that sacct fails."""
    return start_lab(NODES="6", USERSIG="0", DBD="0", MAX_ARRAY="5")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The folder of runs that nothing happens to, by number of ranks."""
    done = {}

    def run(ranks=1, *overrides):
        key = (ranks, *overrides)
        if key not in done:
            outputs = tmp_path_factory.mktemp("undisturbed")
            more = [f"dispatch.nproc={ranks}"] if ranks > 1 else []
            command = [sys.executable, "-m", "launcher", *labs.experiment(outputs), "tracker.pace.seconds=0", *more]
            environment = {**os.environ, "PYTHONPATH": str(labs.TESTS), "OMP_NUM_THREADS": "1"}
            subprocess.run([*command, *overrides], env=environment, check=True, capture_output=True, timeout=120)
            done[key] = outputs
        return done[key]

    return run
