import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from support import lab as labs
from support.incidents import INCIDENTS, begun
from support.runner import launch


def free_ports(taken):
    """The first of 50 ports that nobody listens on, below those that the kernel hands out."""
    first = os.getpid() % 200
    for number in range(first, first + 200):
        port = 20000 + number % 200 * 50
        if port in taken:
            continue
        try:
            for offset in range(20):
                with socket.create_server(("", port + offset)):
                    pass
            return port
        except OSError:
            pass
    raise RuntimeError("no 20 free ports in a row from 20000 to 29999")


@pytest.fixture(scope="session")
def start_lab():
    """Starts clusters; all are stopped at the end. Their daemons run under users of their own, who enter no folder of
    pytest's."""
    if reason := labs.impossible():
        (pytest.fail if labs.REQUIRED else pytest.skip)(reason)
    started = []

    def start(**settings):
        port = free_ports({lab.port for lab in started})
        folder = Path(tempfile.mkdtemp(prefix="slurm-lab-"))
        folder.chmod(0o755)
        lab = labs.Lab(folder / "lab", port, {**labs.PATIENT, **settings})
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
    return start_lab(NODES="4")


@pytest.fixture(scope="session")
def plain_cluster(start_lab):
    """Sends SIGTERM at a preemption; has no accounting, so that sacct fails."""
    return start_lab(NODES="5", USERSIG="0", DBD="0", MAX_ARRAY="3")


@pytest.fixture(scope="session", autouse=True)
def happened(request, tmp_path_factory):
    """The incidents that are asked for. They begin before the first test here, and go on beside the others, on a
    cluster where those do not get in their way."""
    given = [getattr(item, "callspec", None) for item in request.session.items]
    asked = [spec.params["incident"] for spec in given if spec is not None and "incident" in spec.params]
    if not asked:
        yield {}
        return
    chosen = [one for one in INCIDENTS if one in asked]
    nodes = sum(one.nodes for one in chosen if one.user_signal)
    start = request.getfixturevalue("start_lab")
    clusters = {True: start(NODES=str(max(1, nodes)), DBD="0"), False: request.getfixturevalue("plain_cluster")}
    with begun(chosen, lambda one: clusters[one.user_signal], lambda: tmp_path_factory.mktemp("outputs")) as futures:
        yield futures


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The folder of runs that nothing happens to, by number of ranks."""
    done = {}

    def outputs_of(ranks=1, *overrides):
        key = (ranks, *overrides)
        if key not in done:
            outputs = tmp_path_factory.mktemp("undisturbed")
            more = [f"dispatch.nproc={ranks}"] if ranks > 1 else []
            run = launch(outputs, *labs.experiment(outputs), *labs.QUICK, *more, *overrides, timeout=500)
            assert run.returncode == 0, run.output
            done[key] = outputs
        return done[key]

    return outputs_of
