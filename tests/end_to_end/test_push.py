"""Exports are pushed by the real client of the Hugging Face Hub, to a server on this machine."""

import os
import re

import pytest

from launcher import load_model
from launcher.checkpoint.shards import ShardReader
from launcher.checkpoint.stored import digest_weights, weights_digest
from support import python
from support.hub_server import HubServer

TOKEN = "hf_" + "x1Y2" * 9
RUN = (
    *("-m", "launcher", "model=mlp", "data=synthetic", "strategy=none", "device=cpu"),
    *("model.hidden_dim=2", "model.num_layers=1", "data.batch_size=4", "trainer.max_steps=2"),
)


@pytest.fixture
def hub():
    with HubServer(TOKEN) as server:
        yield server


@pytest.fixture
def push(tmp_path, hub):
    """Runs a command with a token of the hub; gives the exit code and the output."""

    def run(*words: str, token: str = TOKEN, endpoint: str = hub.url) -> tuple[int, str]:
        variables = {"HF_ENDPOINT": endpoint, "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1"}
        environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), **variables}
        done = python.run(*words, cwd=tmp_path, env=environment)
        return done.returncode, str(done.stdout) + str(done.stderr or "")

    return run


EXPORT = ("-m", "launcher.runs", "export", "mlp-synthetic", "--push", "lab/net")


def test_a_pushed_export_is_complete_and_a_second_push_changes_nothing(push, hub, tmp_path):
    assert push(*RUN)[0] == 0
    code, output = push(*EXPORT)
    assert code == 0 and f"{hub.url}/lab/net: step 2, commit {hub.sha}." in output
    assert "HTTP Request" not in output
    assert hub.files.keys() == {"README.md", "config.yaml", "model.safetensors"}
    assert [one.get("visibility", "private") for one in hub.created] == ["private"]
    before = dict(hub.files)
    assert push(*EXPORT)[0] == 0
    assert len(hub.commits) == 1 and hub.files == before

    # What the hub has is the run's checkpoint, and its card says so.
    stored, (run,) = tmp_path / "stored", tmp_path.glob("outputs/*/*")
    stored.mkdir()
    for name, content in hub.files.items():
        (stored / name).write_bytes(content)
    digest = digest_weights(ShardReader([stored / "model.safetensors"]))
    assert digest == weights_digest(run / "checkpoints" / "step-00000002")
    card = (stored / "README.md").read_text()
    command = " ".join(RUN[2:])
    for text in (digest, f"{run.parent.name}/{run.name}", f"python -m launcher {command}"):
        assert text in card
    assert re.search(r"\| val/loss \| [\d.]+ \|", card)
    assert sum(parameter.numel() for parameter in load_model(stored).parameters()) > 0

    for file in (*tmp_path.glob("outputs/**/*"), *stored.iterdir()):
        if file.is_file():
            assert TOKEN.encode() not in file.read_bytes(), file
    assert TOKEN not in output


def test_a_hook_pushes_at_the_end_and_again_after_an_error(push, hub):
    words = (*RUN, "hooks=[default,export]", "hooks.export.push=lab/net")
    code, output = push(*words, endpoint="http://127.0.0.1:9")
    assert code == 2 and "hooks.export.push=lab/net: http://127.0.0.1:9 does not take it" in output
    assert "Traceback" not in output and not hub.commits
    assert push(*words)[0] == 0
    assert "model.safetensors" in hub.files
    assert re.search(r"\| val/loss \| [\d.]+ \|", hub.files["README.md"].decode())
    assert push(*EXPORT)[0] == 0
    assert len(hub.commits) == 1, "the command has the same card"


def test_a_token_that_the_hub_rejects_is_one_message(push, hub):
    assert push(*RUN)[0] == 0
    code, output = push(*EXPORT, token="hf_another")
    assert code == 2 and not hub.commits
    (line,) = [line for line in output.splitlines() if "job.push=lab/net" in line and "(" in line]
    assert "the same command pushes it again" in line and "hf_another" not in output


def test_a_name_that_is_no_repository_is_rejected_at_once(push, tmp_path):
    code, output = push(*RUN, "hooks=[default,export]", "hooks.export.push=net")
    assert code == 2 and "hooks.export.push=net: should be owner/name" in output
    assert not (tmp_path / "outputs").exists()
