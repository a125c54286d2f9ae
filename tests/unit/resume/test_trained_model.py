from importlib import import_module
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from launcher import load_model
from launcher.errors import ConfigError
from launcher.models.mlp import MLP
from launcher.resume.mlflow_model import _load_pyfunc
from launcher.rundir.signing import sign_text
from launcher.trackers.mlflow import LOADER

SIZES = {"num_features": 3, "num_classes": 2, "hidden_dim": 4, "num_layers": 1}


@pytest.fixture
def model():
    model = MLP(**SIZES)
    model.init_weights()
    return model.eval()


def export(folder: Path, model: torch.nn.Module, **changed: object) -> Path:
    save_file(model.state_dict(), folder / "model.safetensors")
    node = {"_target_": "launcher.models.mlp.MLP", **SIZES, **changed}
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": node}))
    return folder


def test_an_export(tmp_path, model):
    loaded = load_model(str(export(tmp_path, model)))
    assert not loaded.training and torch.equal(loaded.head.weight, model.head.weight)


def test_half_precision_is_converted(tmp_path, model):
    loaded = load_model(export(tmp_path, model.bfloat16()))
    assert loaded.head.weight.dtype == torch.float32
    assert torch.equal(loaded.head.weight, model.head.weight.float())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_dim": 5}, "do not fit the model: .*shape"),
        (
            {"_target_": "os.system"},
            r"model\._target_=os\.system: only the stored configuration .*; add trust=True",
        ),
        ({"_target_": "no_such_package.Model"}, "no_such_package"),
    ],
)
def test_load_model_reports_a_model_that_cannot_be_built(tmp_path, model, changed, message):
    with pytest.raises(ConfigError, match=message):
        load_model(export(tmp_path, model, **changed))


def test_load_model_reports_that_there_is_nothing_to_load(tmp_path, model):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ConfigError, match="has no checkpoint"):
        load_model(tmp_path)
    with pytest.raises(ConfigError, match=r"weights=ema: .* is an export"):
        load_model(export(tmp_path, model), weights="ema")
    with pytest.raises(ConfigError, match=r"checkpoint=best: .* is not a run"):
        load_model(export(tmp_path, model), checkpoint="best")
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(ConfigError, match="does not exist; build the model yourself"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"x")
    export(tmp_path, model)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        load_model(tmp_path)


# ------------------------------------------------------------------------------------ what is meant
def runs(outputs: Path, model: MLP, *names: str) -> None:
    for name in names:
        run = outputs / name
        (run / "checkpoints").mkdir(parents=True)
        export(run, model)
        (run / "run.json").write_text("{}")


@pytest.mark.parametrize(
    "word", ["abc1", "a", "first/abc1", "second", "abd", "second/abd2", "outputs/first/abc1"]
)
def test_a_run_is_named_as_in_commands(tmp_path, monkeypatch, model, word):
    runs(tmp_path / "outputs", model, "first/abc1", "second/abd2", "third/a")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "second").mkdir()
    assert torch.equal(load_model(word).head.weight, model.head.weight)
    monkeypatch.chdir("/")
    elsewhere = tmp_path / word if word.startswith("outputs") else word
    assert torch.equal(
        load_model(elsewhere, outputs=tmp_path / "outputs").head.weight, model.head.weight
    )


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("ab", r"'ab'\): names 2 runs, first/abc1, second/abd2; write name/id"),
        ("zz", r"'zz'\): there is no such folder, and no run of this id in outputs"),
        ("some/where", r"'some/where'\): there is no such folder, and no run"),
        ("empty", r"'empty'\): this folder has no checkpoint and no model.safetensors"),
    ],
)
def test_a_word_that_names_no_run(tmp_path, monkeypatch, model, word, message):
    runs(tmp_path / "outputs", model, "first/abc1", "second/abd2")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        load_model(word)
    with pytest.raises(ConfigError, match=r"in nowhere; .* outputs="):
        load_model("zz", outputs="nowhere")


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            {"_target_": "no_such.Net"},
            r"config\.yaml: model\._target_='no_such.Net': no module no_such",
        ),
        (
            {
                "_target_": "launcher.models.supervised.Supervised",
                "module": {"_target_": "no_such.Net"},
            },
            r"config\.yaml: model.module\._target_='no_such.Net': no module",
        ),
        ({"_target_": "launcher.models.mlp.MLP", "num_features": "${oc.env:NO_SUCH}"}, r"NO_SUCH"),
    ],
)
def test_a_class_that_is_not_importable(tmp_path, model, caplog, node, message):
    export(tmp_path, model)
    (tmp_path / "config.yaml").write_text(sign_text(yaml.safe_dump({"model": node})))
    with pytest.raises(ConfigError, match=message):
        load_model(tmp_path)
    assert not caplog.records, "Hydra logs nothing"


def test_the_loader_of_models_that_mlflow_has_stored_keeps_its_names():
    for name in ("launcher.train.load", LOADER):
        assert import_module(name)._load_pyfunc is _load_pyfunc
