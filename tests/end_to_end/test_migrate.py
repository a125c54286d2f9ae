"""The programs of docs/migrate.md before and after the move, run: the losses are equal."""

import importlib
import json
import re
import sys
from pathlib import Path
from shlex import split
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from launcher.cli.main import main
from support.paths import ROOT

PAGE = (ROOT / "docs" / "migrate.md").read_text()
FILE = re.compile(r'```\w+ title="([^"]+)"\n(.*?)```', re.DOTALL)
BEFORE = re.compile(r"```py\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The files of the page, whose modules can be imported."""
    folder = tmp_path_factory.mktemp("migrate")
    for name, text in FILE.findall(PAGE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
        for name in ("plain", "classifier"):
            patch.delitem(sys.modules, name, raising=False)


def after(
    words: str, model: nn.Module, project: Path, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """The losses of a command that starts from a model's weights and takes the samples in order."""
    save_file(model.state_dict(), project / "init.safetensors")
    same = split(
        "data.shuffle=false run.init_from=init.safetensors device=cpu hooks.logging.interval=1"
    )
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "argv", ["launcher"])
    main([*words.split(), *same, f"run.id={model.__module__}"])
    (file,) = (project / "outputs").glob(f"*/{model.__module__}/metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line["train/loss"] for line in lines if "train/loss" in line]


def command(option: str) -> str:
    """The arguments of the page's command with an override."""
    (words,) = re.findall(rf"\$ python -m launcher (.*{option}.*)", PAGE)
    return str(words)


def test_plain_loop_and_its_command_have_equal_losses(project, monkeypatch):
    plain = importlib.import_module("plain")
    model = plain.Net(width=64)
    losses = after(command("optimizer=sgd"), model, project, monkeypatch)
    expected = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for x, y in DataLoader(plain.Rows(960), batch_size=32):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-6)


def test_lightning_module_and_its_command_have_equal_losses(project, monkeypatch):
    lightning = pytest.importorskip("pytorch_lightning")
    (before,) = [code for code in BEFORE.findall(PAGE) if "LightningModule" in code]
    expected = []

    class Watch(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
            expected.append(outputs["loss"].item())

    def trainer(**arguments: Any) -> Any:
        """The page's trainer, which writes nothing."""
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        return lightning.Trainer(**arguments, **quiet, accelerator="cpu", callbacks=[Watch()])

    rows = importlib.import_module("plain").Rows
    torch.manual_seed(0)
    names = {"nn": nn, "F": F, "torch": torch, "DataLoader": DataLoader, "Rows": rows}
    exec(before, {**names, "LightningModule": lightning.LightningModule, "Trainer": trainer})
    torch.manual_seed(0)
    model = importlib.import_module("classifier").Classifier()
    losses = after(command("experiment=as_lightning"), model, project, monkeypatch)
    assert len(losses) == 60 and losses == pytest.approx(expected, rel=1e-6)


def test_trainer_of_transformers_and_its_preset_have_equal_losses(project, monkeypatch):
    from transformers import Trainer, TrainingArguments

    rows = importlib.import_module("plain").Rows(960)
    model = importlib.import_module("classifier").Classifier()
    model.__module__ = "transformers"  # the name of the run
    words = "model=classifier data=rows experiment=as_trainer trainer.max_epochs=2"
    losses = after(words, model, project, monkeypatch)
    expected = []

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(rows)

        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            loss = model((inputs["x"], inputs["labels"]))[0]
            expected.append(loss.item())
            return loss

    monkeypatch.chdir(project)
    (arguments,) = re.findall(r"`TrainingArguments\((num_train_epochs=2[^`]*)\)`", PAGE)
    settings = eval(f"dict({arguments})")
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True}
    quiet |= {"save_strategy": "no", "logging_strategy": "no", "remove_unused_columns": False}
    dataset = [{"x": x, "labels": y} for x, y in (rows[index] for index in range(len(rows)))]
    InOrder(model, TrainingArguments(**settings, **quiet), train_dataset=dataset).train()
    assert len(losses) == 60 and losses == pytest.approx(expected, rel=1e-6)
