"""Jobs to submit, and parts of their scripts."""

import subprocess

from launcher.config.options import own_target
from launcher.config.run_config import RunConfig
from launcher.dispatch.jobs import Job


def run_of(tmp_path, lanes):
    config = {
        "run": {"name": "mlp", "id": "id", "dir": str(tmp_path)},
        "paths": {"outputs": tmp_path},
        "job": {"_target_": own_target("job", "train")},
        "trainer": {"lanes": lanes, "max_steps": 9},
        "hooks": {"checkpointing": {}},
    }
    return Job(RunConfig(config, config))


def run_bash(script: str) -> subprocess.CompletedProcess[str]:
    """Run a part of a job's script."""
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
