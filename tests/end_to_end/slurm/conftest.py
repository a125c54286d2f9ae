import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from support import lab as labs
from support.incidents import INCIDENTS, begun
from support.runner import launch

PORTS = 50
"""Ports of a cluster."""
HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Two groups, since both mostly wait for SLURM's timers. The incidents come last in theirs:
    they happen while its other tests run."""
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        group = "slurm, accounting" if "cluster" in item.fixturenames else "slurm, incidents"
        item.add_marker(pytest.mark.xdist_group(group))
        item.add_marker(pytest.mark.timeout(2 * labs.MAX_WAIT_S))
    others = [item for item in items if HERE not in item.path.parents]
    items[:] = [*sorted(ours, key=lambda item: "incident" in item.fixturenames), *others]


def reserve_ports():
    """Return the first of PORTS free ports, and a socket that keeps other workers off them.

    They are below the ports that ranks choose, and below the ports of outgoing connections.
    """
    for first in range(10000, 15000, PORTS):
        try:
            reservation = socket.create_server(("", first + PORTS - 1))
        except OSError:
            continue
        try:
            for port in range(first, first + PORTS - 1):
                with socket.create_server(("", port)):
                    pass
            return first, reservation
        except OSError:
            reservation.close()
    raise RuntimeError(f"no {PORTS} free ports in a row from 10000 to 14999")


@pytest.fixture(scope="session")
def start_lab():
    """Starts clusters; all are stopped at the end. Their daemons run under users of their own, who
    enter no folder of pytest's."""
    if reason := labs.impossible():
        (pytest.fail if labs.REQUIRED else pytest.skip)(reason)
    started = []

    def start(**settings):
        port, reservation = reserve_ports()
        folder = Path(tempfile.mkdtemp(prefix="slurm-lab-"))
        folder.chmod(0o755)
        lab = labs.Lab(folder / "lab", port, {**labs.PATIENT, **settings})
        started.append((lab, reservation))
        lab.start()
        return lab

    yield start
    for lab, reservation in started:
        lab.stop()
        reservation.close()
        shutil.rmtree(lab.state.parent, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(start_lab):
    """Sends a job's own signal at a preemption; has accounting."""
    return start_lab(NODES="4")


@pytest.fixture(scope="session")
def plain_cluster(start_lab):
    """Sends SIGTERM at a preemption; has no accounting, so that sacct fails."""
    return start_lab(NODES="5", USERSIG="0", DBD="0", MAX_ARRAY="3")


@pytest.fixture(scope="session")
def small_cluster(start_lab):
    """Sends a job's own signal at a preemption; has no accounting."""
    return start_lab(NODES="4", DBD="0")


@pytest.fixture(autouse=True)
def beside_the_incidents(request):
    """They begin before the first test of their group."""
    if "cluster" not in request.fixturenames:
        request.getfixturevalue("happened")


@pytest.fixture(scope="session")
def happened(request, tmp_path_factory):
    """The incidents that are asked for. They happen on clusters where other tests do not get in
    their way."""
    items = [item for item in request.session.items if "incident" in item.fixturenames]
    asked = [item.callspec.params["incident"] for item in items]
    if not asked:
        yield {}
        return
    chosen = [one for one in INCIDENTS if one in asked]
    nodes = sum(one.nodes for one in chosen if one.user_signal)
    start = request.getfixturevalue("start_lab")
    clusters = {
        True: start(NODES=str(max(1, nodes)), DBD="0"),
        False: request.getfixturevalue("plain_cluster"),
    }
    with begun(
        chosen, lambda one: clusters[one.user_signal], lambda: tmp_path_factory.mktemp("outputs")
    ) as futures:
        yield futures


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The folder of runs that nothing happens to, by number of ranks."""
    done = {}

    def outputs_of(ranks=1, *overrides):
        key = (ranks, *overrides)
        if key not in done:
            outputs = tmp_path_factory.mktemp("undisturbed")
            words = [*labs.experiment(outputs), *labs.QUICK, *overrides]
            words += [f"dispatch.nproc={ranks}"] if ranks > 1 else []
            run = launch(outputs, *words, timeout=500)
            assert run.returncode == 0, run.output
            done[key] = outputs
        return done[key]

    return outputs_of
