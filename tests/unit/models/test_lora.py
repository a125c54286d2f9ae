import sys

import pytest
import torch
from omegaconf import OmegaConf

from launcher import load_model
from launcher.checkpoint.export_weights import write_model
from launcher.checkpoint.shards import ShardReader
from launcher.errors import ConfigError
from launcher.models.huggingface import HuggingFaceModel
from launcher.models.lora import Lora
from support.transformers_configs import GPT2

TARGET = "launcher.models.huggingface.HuggingFaceModel"
TOKENS = torch.arange(16).reshape(2, 8)


def test_without_peft_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        ConfigError, match=r"^model\.lora\.r=2: needs the package peft; pip install"
    ):
        Lora(r=2).apply(torch.nn.Linear(1, 1))


@pytest.fixture
def source(tmp_path):
    pytest.importorskip("peft")
    torch.manual_seed(0)
    HuggingFaceModel(vocab_size=64, config=GPT2).model.save_pretrained(tmp_path / "source")
    return tmp_path / "source"


def adapted(source, **options):
    return HuggingFaceModel(pretrained=str(source), lora=Lora(r=2, **options))


def test_only_adapters_are_trained_and_stored(source):
    model = adapted(source)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    assert set(model.state_dict()) == {*trained, "frozen._extra_state"}
    assert torch.equal(
        model.eval().logits(TOKENS), HuggingFaceModel(pretrained=str(source)).eval().logits(TOKENS)
    )


def test_a_new_classifier_is_trained_besides_the_adapters(source):
    options = {"task": "sequence_classification", "pretrained": str(source), "num_labels": 3}
    model, other = (
        HuggingFaceModel(**options, lora=Lora(r=2, target_modules=["c_fc"])) for _ in range(2)
    )
    # An export builds the model again, with another head. What is not trained must be the same.
    other.load_state_dict(model.state_dict(), strict=False)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert any("score" in name for name in trained)
    assert all(("c_fc" in name and "lora" in name) or "score" in name for name in trained)
    assert set(trained) < set(model.state_dict())


def test_layers_that_are_not_there(source):
    with pytest.raises(ConfigError, match=r"^model\.lora\.target_modules=\['q_proj'\]: .*q_proj"):
        adapted(source, target_modules=["q_proj"])


def test_an_export_is_merged_and_gives_the_same_logits(source, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = adapted(source, dropout=0.1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    node = {
        "_target_": TARGET,
        "pretrained": str(source),
        "lora": {"_target_": "launcher.models.lora.Lora", "r": 2},
        "liger": True,
    }
    tensors = model.state_dict()
    extra = {"frozen._extra_state": tensors.pop("frozen._extra_state")}
    export = tmp_path / "export"
    export.mkdir()
    path, written = write_model(export, node, tensors, extra)
    # A machine without a GPU may load it.
    assert written == node | {"lora": None, "liger": False}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(export).eval()
    torch.testing.assert_close(theirs(TOKENS).logits, model.eval().logits(TOKENS))
    assert not any("lora" in name for name in ShardReader([path]).names())
    (export / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create({"model": written})))
    assert torch.equal(load_model(export).logits(TOKENS), theirs(TOKENS).logits)


def test_adapters_fit_only_the_weights_that_they_were_trained_on(source):
    model = adapted(source)
    state = model.frozen.get_extra_state()
    adapted(source).frozen.set_extra_state(state)
    HuggingFaceModel(vocab_size=64, config=GPT2).model.save_pretrained(source)
    with pytest.raises(
        ConfigError, match=r"^model\.pretrained=.*: its weights have changed since the adapters"
    ):
        adapted(source).frozen.set_extra_state(state)
