"""The plain loop of docs/migrate.md and the command that takes its place: the same losses."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from support import python
from support.paths import ROOT

FILE = re.compile(r'```\w+ title="([^"]+)"\n(.*?)```', re.DOTALL)


def test_plain_loop_and_its_command_have_equal_losses(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "migrate.md").read_text()
    for name, text in FILE.findall(page):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    spec = importlib.util.spec_from_file_location("plain_of_the_page", tmp_path / "plain" / "__init__.py")
    assert spec is not None and spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    model = plain.Net(width=64)
    save_file(model.state_dict(), tmp_path / "init.safetensors")
    (command,) = re.findall(r"\$ python -m launcher (model=plain .*optimizer=sgd.*)", page)
    more = [
        "data.shuffle=false",
        "hooks.logging.interval=1",
        "run.id=a",
        "device=cpu",
        "run.init_from=init.safetensors",
    ]
    done = python.run("-m", "launcher", *command.split(), *more, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (tmp_path / "outputs").glob("*/a/metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    losses = [line["train/loss"] for line in lines if "train/loss" in line]

    expected = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for x, y in torch.utils.data.DataLoader(plain.Rows(960), batch_size=32):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-6)
