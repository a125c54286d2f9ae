"""The programs of docs/migrate.md before and after the move, run: the losses are bitwise equal.

Its table of defaults has each key that makes a run differ from a plain loop of torch.
"""

import importlib
import inspect
import json
import re
import sys
from pathlib import Path
from shlex import split
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from launcher.cli.main import main
from launcher.config.identity.run_id import identity_to_hash
from launcher.config.omegaconf_nodes import to_plain
from launcher.config.tree import walk
from launcher.data.synthetic import SyntheticTokens
from launcher.models.gpt import GPT
from launcher.models.mlp import MLP
from support.composition import composed
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
    assert losses == expected


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
    assert len(losses) == 60 and losses == expected


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
    assert len(losses) == 60 and losses == expected


TABLE = PAGE[PAGE.index("| set, for a plain loop |") :].partition("\n\n")[0]
SET = {
    word: row
    for row in TABLE.splitlines()
    for word in re.findall(r"[\w.]+=[^\s`]+", row.split(" | ")[-1])
}
"""The overrides of the table's last column, and their rows."""
TORCH: dict[str, Any] = {
    "optimizer=adamw": torch.optim.AdamW,
    "optimizer=adam": torch.optim.Adam,
    "optimizer=sgd": torch.optim.SGD,
    "scheduler=plateau": torch.optim.lr_scheduler.ReduceLROnPlateau,
    "data=custom": DataLoader,
}
"""The classes of torch whose arguments the keys of an option are."""
NAMED_BY_EACH_PROGRAM = {
    "data.batch_size",
    "data.dataset",
    "seed",
    "trainer.max_steps",
    "scheduler.max_steps",
    "scheduler.metric",
}
WITH_THE_SCHEDULE = {"scheduler.min_lr_ratio", "scheduler.warmup_ratio"}
"""Keys that `scheduler=constant` does not have."""
LIMITS = {"trainer.max_consecutive_skipped_steps", "trainer.max_consecutive_none_losses"}
"""Keys that end a run, and change no number of it."""
AS_IN_TORCH: dict[str, Any] = {
    "strategy": "auto: none, on one device",
    "precision.name": "fp32",
    "trainer.max_epochs": "null: the steps count",
    "trainer.micro_batch_size": "null: the whole batch in one pass",
    "trainer.lanes": "null: off",
    "trainer.max_non_finite_grad_retries": "null: skip the step, which the page says",
    "trainer.sync_every_micro_batch": "false, and there is one micro-batch",
    "trainer.compile": "false: off",
    "trainer.deterministic": "false: off",
    "hooks.evaluation.max_samples": "null: all",
    "hooks.evaluation.test": "null: none",
    "hooks.evaluation.metrics": "null: none",
    **dict.fromkeys(
        ("data.val_batch_size", "data.val_dataset", "data.val_datasets", "data.val_collate_fn"),
        "null: the validation set is the program's",
    ),
    **dict.fromkeys(
        ("data.vocab_size", "data.seq_len", "data.num_features", "data.num_classes"),
        "null: only models refer to them",
    ),
}
"""Keys that have no counterpart in a signature of torch, and the value of a plain loop."""
OTHER_MEANING = {"optimizer.fused"}
"""Keys of torch with torch's default, where null chooses something else."""


@pytest.mark.parametrize("choice", TORCH)
def test_table_has_each_default_that_differs_from_a_plain_loop(choice):
    """All keys that can change a number, from conf/, and what torch does if a loop says nothing."""
    words = ["data=custom", "data.dataset._target_=plain.Rows", "model=supervised", choice]
    config = composed([*words, "model.module._target_=torch.nn.Linear"])
    chosen = ["data=custom", "optimizer=adamw", choice]
    arguments = {
        f"{option.partition('=')[0]}.{name}": argument.default
        for option in chosen
        for name, argument in inspect.signature(TORCH[option]).parameters.items()
    }
    explained = NAMED_BY_EACH_PROGRAM | WITH_THE_SCHEDULE | LIMITS | AS_IN_TORCH.keys()
    on_the_page = {word.partition("=")[0] for word in SET}
    assert not explained & on_the_page
    unexplained = {
        key: value
        for key, value in walk(identity_to_hash(config, to_plain(config)))
        if not isinstance(value, dict) and not key.startswith("model.") and "._" not in key
        if key not in explained | on_the_page
    }
    for key, value in unexplained.items():
        assert key not in OTHER_MEANING and key in arguments, f"{key}={value} is not on the page"
        default = arguments[key]
        assert value == (list(default) if isinstance(default, tuple) else default), key


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("kind", ["mlp", "gpt"])
def test_with_the_table_a_run_is_a_plain_loop_of_torch(kind, optimizer, project, monkeypatch):
    """Losses and weights are bitwise equal, with nothing set but the table."""
    torch.manual_seed(0)
    sizes = "data.batch_size=8 trainer.max_steps=20"
    rows: Any
    model: nn.Module
    if kind == "mlp":
        sizes += " model=mlp data=rows data.num_features=8 data.num_classes=2 model.hidden_dim=16"
        rows = importlib.import_module("plain").Rows(960)
        model = MLP(num_features=8, num_classes=2, hidden_dim=16)
    else:
        sizes += " model=gpt data=synthetic data.seq_len=16 data.vocab_size=32 model.dim=16"
        rows = SyntheticTokens(8192, 16, 32, 0)
        model = GPT(vocab_size=32, seq_len=16, dim=16, num_layers=2, num_heads=4)
        model.init_weights()
    sizes += f" optimizer={optimizer} run.tag={optimizer}"
    known = {
        key
        for key, _ in walk(
            to_plain(composed([*sizes.split(), "scheduler=constant"], project / "conf"))
        )
    }
    # A row may be about one optimizer.
    other = "`sgd`:" if optimizer == "adamw" else "`adamw`:"
    words = [
        word for word, row in SET.items() if word.partition("=")[0] in known and other not in row
    ]
    assert len(words) > 5
    # The name of the run; the weights are read before the loop changes them.
    model.__module__ = f"{kind}-{optimizer}"
    losses = after(" ".join([sizes, *words]), model, project, monkeypatch)
    steps = TORCH[f"optimizer={optimizer}"](model.parameters())
    expected = []
    for batch, _ in zip(DataLoader(rows, batch_size=8), range(20), strict=False):
        loss = model(batch)[0]
        steps.zero_grad()
        loss.backward()
        steps.step()
        expected.append(loss.item())
    assert losses == expected
    (shard,) = (project / "outputs").glob(f"*/{model.__module__}/checkpoints/latest/shard-*")
    saved = {name.removeprefix("model/"): t for name, t in load_file(shard).items()}
    for name, weight in model.state_dict().items():
        assert torch.equal(saved[name], weight), name
