"""The rank of a process, from the variables of the program that launched it."""

import os

import pytest

from launcher.dispatch.environment import check_ranks, first_node, join_ranks
from launcher.errors import ConfigError
from launcher.process.gpus import count_gpus
from launcher.process.rendezvous_port import PORTS
from launcher.rundir.provenance import is_restart, slurm_job_id

STEP = {
    "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[03-04]", "SLURM_NTASKS": "8",
}  # fmt: skip


def joined(**variables: str) -> dict[str, str]:
    """Join a step's ranks, with other variables."""
    env = {**STEP, **variables}
    assert join_ranks(env)
    return env


def test_a_slurm_step_of_several_tasks_is_joined():
    env, other = joined(), joined(SLURM_PROCID="0", SLURM_LOCALID="0")
    rank = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "gpu03"}
    assert {key: env[key] for key in rank} == rank
    assert other["MASTER_PORT"] == env["MASTER_PORT"]


@pytest.mark.parametrize(
    ("tasks", "node", "count"),
    [
        *(("4(x2)", "1", "4"), ("8", "0", "8"), ("2(x3),1,12(x2)", "3", "1")),
        *(("2(x3),1,12(x2)", "5", "12"), ("4", "1", None), ("", "0", None)),
    ],
)
def test_each_task_knows_how_many_its_node_has(tasks, node, count):
    env = joined(SLURM_STEP_TASKS_PER_NODE=tasks, SLURM_NODEID=node)
    assert env.get("LOCAL_WORLD_SIZE") == count


def test_a_task_with_a_terminal_is_joined():
    env = joined(SLURM_PTY_PORT="39057", SLURM_TASK_PID=str(os.getpid()))
    assert (env["RANK"], env["WORLD_SIZE"]) == ("5", "8")


def test_steps_with_the_same_ids_meet_on_different_ports():
    """The steps belong to two clusters on one host, or to two launches of a job."""
    first, second = (joined(SLURM_SRUN_COMM_PORT=port) for port in ("33017", "35051"))
    assert int(first["MASTER_PORT"]) in PORTS and first["MASTER_PORT"] != second["MASTER_PORT"]


def test_a_users_port_stays():
    env = joined(MASTER_PORT="29500")
    assert env["MASTER_PORT"] == "29500" and "LAUNCHER_MEETING" not in env
    assert "LAUNCHER_MEETING" in joined()


def test_a_task_bound_to_its_gpu_takes_the_only_one():
    assert joined(CUDA_VISIBLE_DEVICES="3")["LOCAL_RANK"] == "0"


@pytest.mark.parametrize(
    "env",
    [
        {},
        # A batch script, without srun.
        {"SLURM_JOB_ID": "12", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"},
        {**STEP, "SLURM_STEP_NUM_TASKS": "1"},
        # A command in the shell of srun --pty.
        {**STEP, "SLURM_PTY_PORT": "39057", "SLURM_TASK_PID": str(os.getppid())},
        {"RANK": "0", "WORLD_SIZE": "1"},
    ],
)
def test_single_process_joins_no_ranks(env):
    assert not join_ranks(dict(env))


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"WORLD_SIZE": "2"}, r" WORLD_SIZE=2 .*without RANK, MASTER_ADDR, MASTER_PORT:"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "1"}, r" WORLD_SIZE=2 .*MASTER_ADDR:"),
        ({"WORLD_SIZE": "two", "RANK": "0"}, r"^WORLD_SIZE='two' .*should be a number"),
        ({"RANK": "-1"}, r"^RANK='-1' .*should be a number"),
        ({"LOCAL_RANK": ""}, r"^LOCAL_RANK='' .*should be a number"),
        ({"WORLD_SIZE": "0"}, r"^WORLD_SIZE='0' .*at least 1"),
        ({"WORLD_SIZE": "0", "RANK": "0"}, r"^WORLD_SIZE='0' .*at least 1"),
        ({"RANK": "1"}, r"^RANK=1 and WORLD_SIZE=1 "),
        (
            {"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
            r"^RANK=2 and WORLD_SIZE=2 in the environment: ",
        ),
    ],
)
def test_left_over_variables_are_rejected(env, sentence):
    join_ranks(dict(env))  # which is called first
    with pytest.raises(ConfigError, match=sentence):
        check_ranks(env)


def test_torchrun_s_variables_override_slurm_s():
    env = joined(RANK="1", WORLD_SIZE="2")
    assert (env["RANK"], env["WORLD_SIZE"]) == ("1", "2")


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu[03-07,12],cpu1", "gpu03"),
        ("a,b", "a"),
        ("rack[1]-ib,x", "rack1-ib"),
        ("n[007]", "n007"),
    ],
)
def test_the_first_of_slurm_s_nodes(nodes, first):
    assert first_node(nodes) == first


@pytest.mark.parametrize(
    ("files", "env", "count"),
    [
        ([], {}, 0),
        (["nvidia0", "nvidiactl", "nvidia-uvm"], {}, 1),
        (["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "1"}, 1),
        (["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": ""}, 0),
    ],
)
def test_gpus_are_counted_without_torch_if_there_is_at_most_one(tmp_path, files, env, count):
    for name in files:
        (tmp_path / name).touch()
    assert count_gpus(env, tmp_path) == count


@pytest.mark.parametrize("value", ["", "two", "-1", "\u0663", None])
@pytest.mark.parametrize("name", ["SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"])
def test_a_number_of_slurm_that_is_none_is_a_sentence(name, value):
    env = {key: text for key, text in STEP.items() if key != name}
    if value is None and name == "SLURM_STEP_NUM_TASKS":
        assert not join_ranks(env)
        return
    if value is not None:
        env[name] = value
    with pytest.raises(ConfigError, match=f"{name}.*unset it"):
        join_ranks(env)


@pytest.mark.parametrize(("variables", "job", "is_again"), [
    ({}, None, False), ({"SLURM_JOB_ID": "", "SLURM_RESTART_COUNT": ""}, None, False),
    ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "0"}, "7", False),
    ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}, "7", True),
])  # fmt: skip
def test_an_empty_variable_of_slurm_is_no_job(variables, job, is_again, monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_ARRAY_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (slurm_job_id(), is_restart()) == (job, is_again)
