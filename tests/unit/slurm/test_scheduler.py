"""How SLURM's commands are called."""

import pytest

from launcher.slurm import scheduler


def test_a_user_s_defaults_hide_no_job(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """`SQUEUE_STATES=PD` would make each running job look as if it were gone, and be submitted again."""
    (tmp_path / "squeue").write_text(
        '#!/bin/sh\n[ -z "$SQUEUE_STATES$SQUEUE_PARTITION" ] && echo "12|RUNNING|None|n1|/a script.sh"\n'
    )
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in ("SQUEUE_STATES", "SQUEUE_PARTITION"):
        monkeypatch.setenv(name, "other")
    assert scheduler.queue() == {"12": scheduler.QueuedJob("12", "RUNNING", "None", "n1", "/a script.sh")}
