"""Models and data of libraries, and Launcher's own, have nothing that a resume would lose."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from launcher.rundir.folder import RunFolder
from launcher.train.build import build_trainer
from support.composition import composed, run_of
from support.stateful.case import Case, Net, Parts, Rows
from support.stateful.product import train

pytestmark = pytest.mark.slow


class Tokens(Rows):
    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(19, (12,), generator=generator), torch.tensor(index % 3)


class OfTransformers(nn.Module):
    def __init__(self, inner: nn.Module, labels: bool = True) -> None:
        super().__init__()
        self.inner, self.has_labels = inner, labels

    def forward(self, batch: Any) -> Any:
        tokens, target = batch
        output = self.inner(input_ids=tokens, labels=tokens if self.has_labels else target)
        return output.loss, {}


TINY = {
    "vocab_size": 19, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2,
}  # fmt: skip


def of_transformers(name: str, lora: bool = False, **settings: Any) -> Callable[[], Parts]:
    def make() -> Parts:
        import transformers

        config = getattr(transformers, f"{name}Config")(**TINY, **settings)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        if lora:
            import peft

            model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear"))
        return Parts(model=OfTransformers(model), dataset=Tokens())

    return make


def torchmetrics_in_a_model() -> Parts:
    import torchmetrics

    class Measured(Net):
        def __init__(self) -> None:
            super().__init__()
            self.error = torchmetrics.MeanSquaredError()
            self.all = torchmetrics.MetricCollection([torchmetrics.MeanAbsoluteError()])

        def criterion_of(self, output: Tensor, target: Tensor) -> Tensor:
            self.error(output, target)
            self.all.update(output, target)
            return nn.functional.mse_loss(output, target)

        def forward(self, batch: Any) -> Any:
            x, y = batch
            return self.criterion_of(self.last(self.features(x)), y), {}

    return Parts(model=Measured())


def bert() -> Parts:
    import transformers

    settings = {key: value for key, value in TINY.items() if key != "num_key_value_heads"}
    config = transformers.BertConfig(**settings, num_labels=3)
    model = transformers.BertForSequenceClassification(config)
    return Parts(model=OfTransformers(model, labels=False), dataset=Tokens())


def table_of_hugging_face() -> Parts:
    import datasets

    rows = Rows()
    columns = {"x": rows.x.tolist(), "y": rows.y.tolist()}
    table = datasets.Dataset.from_dict(columns).with_format("torch")

    class Read(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.table = table

        def __getitem__(self, index: int) -> Any:
            row = self.table[index]
            return row["x"], row["y"]

    return Parts(dataset=Read())


def frame_of_pandas() -> Parts:
    import pandas as pd

    class Read(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.frame = pd.DataFrame(self.x.numpy())

        def __getitem__(self, index: int) -> Any:
            return torch.from_numpy(self.frame.iloc[index].to_numpy().copy()), self.y[index]

    return Parts(dataset=Read())


LIBRARIES = {
    "llama": of_transformers("Llama"),
    "mixtral": of_transformers("Mixtral", num_local_experts=2, output_router_logits=True),
    "qwen2_moe": of_transformers(
        "Qwen2Moe",
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=8,
    ),
    "gemma2": of_transformers("Gemma2", head_dim=8),
    "lora": of_transformers("Llama", lora=True),
    "bert": bert,
    "torchmetrics": torchmetrics_in_a_model,
    "datasets": table_of_hugging_face,
    "pandas": frame_of_pandas,
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_parts_of_libraries_raise_no_false_alarm(name, tmp_path):
    _, texts = train(Case(LIBRARIES[name], None), tmp_path)
    assert texts == []


OWN = {
    "gpt": ["model=gpt", "model.dim=16", "model.num_layers=2", "model.num_heads=2"],
    "muon": ["model=gpt", "model.dim=16", "model.num_layers=1", "model.num_heads=2",
             "optimizer=muon"],
    "plateau": ["model=mlp", "data=digits", "scheduler=plateau", "optimizer=lion"],
    "ema": ["model=mlp", "data=digits", "hooks=[default,ema,throughput,gradients,memory]"],
    "stopping": ["model=mlp", "data=digits", "hooks=[default,early_stopping,skip_spikes]"],
}  # fmt: skip
COMMON = ["trainer.max_steps=6", "hooks.checkpointing.interval=2", "device=cpu", "run.name=a"]
COMMON += ["run.id=b", "tracker=[]"]


@pytest.mark.parametrize("name", OWN)
def test_own_parts_raise_no_false_alarm(name, tmp_path, caplog):
    data = [] if "data=digits" in OWN[name] else ["data=synthetic", "data.seq_len=12"]
    data += ["data.num_samples=64", "data.batch_size=8"] if data else ["data.batch_size=32"]
    config = run_of(composed([*data, *OWN[name], *COMMON]))
    trainer = build_trainer(config, RunFolder(tmp_path))
    trainer.train()
    trainer.strategy.teardown()
    assert "would start over" not in caplog.text
    assert trainer.context.unstored == {"lost": [], "changed": [], "is_cut": False}
