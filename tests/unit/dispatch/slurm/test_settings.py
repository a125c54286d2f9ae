"""The settings of a submission, and the flags and the script that they make."""

import re

import pytest

from launcher.dispatch.slurm.settings import SlurmSettings
from launcher.errors import ConfigError
from launcher.slurm.sbatch import GUARD, Script
from support.job_scripts import run_bash, run_of


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("setup", ["export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567"]),
        ("setup", ["true", "curl https://me:pass1234@host"]),
        ("srun", ["--export=HF_TOKEN=hf_" + "a" * 34]),
        ("sbatch", {"comment": "ghp_" + "a" * 36}),
    ],
)
def test_no_secret_is_in_the_script(key, value):
    """Its values come from the environment, too."""
    with pytest.raises(ConfigError, match=rf"dispatch\.{key}\.\w+: a secret would be .* script"):
        SlurmSettings(**{key: value})


def test_variables_of_the_shell_are_no_secrets():
    SlurmSettings(setup=["export WANDB_API_KEY=$KEY", 'export HF_TOKEN="${TOKEN}"'])


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"nodes": "4-1"}, "nodes='4-1'"),
        *(
            ({"sbatch": {flag: True}}, f"sbatch.{flag}")
            for flag in ("array", "nodes", "ntasks", "signal", "test_only", "wait", "no-requeue")
        ),
        ({"sbatch": {"nodelist": ["n1", "n2"]}}, "sbatch.nodelist=['n1','n2']"),
        *(({"time": text}, f"time='{text}'") for text in ("", "-5", "0", "0-0:0", "0:00:00", "1h")),
        *(({"sbatch": {"time": number}}, f"sbatch.time={number}") for number in (-5, 0)),
    ],
)
def test_settings_that_cannot_work_are_rejected(settings, key):
    with pytest.raises(ConfigError, match=rf"^dispatch\.{re.escape(key)}: "):
        SlurmSettings(**settings)


@pytest.mark.parametrize(
    ("sbatch", "key", "lines"),
    [
        ({"exclusive": True}, "exclusive", ["exclusive"]),
        ({"exclusive": False}, "exclusive", []),
        ({"requeue": False}, "requeue", ["no-requeue"]),
        ({"mem": "1G"}, "mem", ["mem=1G"]),
        ({"mem": 0}, "mem", ["mem=0"]),
        *(
            ({"time": text}, "time", [f"time={text}"])
            for text in (90, "1:30:05", "1-0", "UNLIMITED")
        ),
        ({"job_name": "mine"}, "job-name", ["job-name=mine"]),
        ({"output": "/logs/%j"}, "/logs", ["error=/logs/%j", "output=/logs/%j"]),
        ({}, "partition", ["partition=own"]),
        ({"partition": "other"}, "partition", ["partition=other"]),
        ({"partition": False}, "partition", []),
        ({}, "output", ["output={folder}/50%%j/%A_%a.out"]),  # a folder's name is no pattern
    ],
)
def test_flags_of_sbatch(tmp_path, monkeypatch, sbatch, key, lines):
    monkeypatch.setenv("SBATCH_PARTITION", "own")
    flags = SlurmSettings(sbatch=sbatch).flags()
    script = Script("gpt", flags, task=["-m", "task"])
    text = script.text(tmp_path / "50%j" / "job-0.sh", 2, None).replace("'", "")
    flags = [line for line in text.splitlines() if line.startswith("#SBATCH") and key in line]
    assert sorted(flags) == [f"#SBATCH --{line.format(folder=tmp_path)}" for line in lines]


@pytest.mark.parametrize(("lanes", "nodes"), [([None], 3), ([None, 16, 8], 2)])
def test_a_job_of_any_size_counts_its_nodes_at_its_start(tmp_path, lanes, nodes):
    settings = SlurmSettings(nodes="1-4", gpus_per_node=2, cpus_per_task=3)
    flags = settings.flags()
    assert (flags["nodes"], flags["mincpus"]) == ("1-4", 6)
    assert not {"ntasks-per-node", "cpus-per-task"} & flags.keys()
    runs = [run_of(tmp_path, count) for count in lanes]
    command = settings.script(runs, []).command(tmp_path / "job-0.sh").splitlines()[-1]
    script = f"__launcher_run={tmp_path}; SLURM_JOB_NUM_NODES=3; source {GUARD}; trap - EXIT"
    *said, words = run_bash(f"{script}\nguarded() {{ echo $@; }}; {command}").stdout.splitlines()
    assert words.startswith(
        f"srun --nodes={nodes} --ntasks={2 * nodes} --ntasks-per-node=2 --export=ALL"
        " --kill-on-bad-exit=1 --cpus"
    )
    assert len(said) == (nodes != 3)
