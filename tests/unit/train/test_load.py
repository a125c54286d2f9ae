from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from launcher import load_model
from launcher.errors import ConfigError
from launcher.models.mlp import MLP
from launcher.train.load import _load_pyfunc

SIZES = {"num_features": 3, "num_classes": 2, "hidden_dim": 4, "num_layers": 1}


@pytest.fixture
def model() -> MLP:
    model = MLP(**SIZES)
    model.init_weights()
    return model.eval()


def export(folder: Path, model: torch.nn.Module, **changed: object) -> Path:
    save_file(model.state_dict(), folder / "model.safetensors")
    node = {"_target_": "launcher.models.mlp.MLP", **SIZES, **changed}
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": node}))
    return folder


def test_an_export_and_what_mlflow_calls(tmp_path: Path, model: MLP) -> None:
    inputs = np.random.default_rng(0).random((5, 3))
    expected = model.logits(torch.tensor(inputs, dtype=torch.float32)).detach().numpy()
    loaded = load_model(str(export(tmp_path, model)))
    assert not loaded.training and torch.equal(loaded.head.weight, model.head.weight)
    np.testing.assert_array_equal(_load_pyfunc(str(tmp_path)).predict(inputs), expected)


def test_half_precision_is_converted(tmp_path: Path, model: MLP) -> None:
    loaded = load_model(export(tmp_path, model.bfloat16()))
    assert loaded.head.weight.dtype == torch.float32
    assert torch.equal(loaded.head.weight, model.head.weight.float())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_dim": 5}, "do not fit the model: .*shape"),
        ({"_target_": "os.system"}, "model._target_=os.system: .*class"),
        ({"_target_": "subprocess.Popen", "args": ["touch", "x"]}, "must name a torch.nn.Module"),
        ({"_target_": "no_such_package.Model"}, "no_such_package"),
    ],
)
def test_what_cannot_be_built(tmp_path: Path, model: MLP, changed: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_model(export(tmp_path, model, **changed))


def test_nothing_to_load(tmp_path: Path, model: MLP) -> None:
    with pytest.raises(ConfigError, match="has no checkpoint"):
        load_model(tmp_path)
    with pytest.raises(ConfigError, match=r"weights=ema: .* is an export"):
        load_model(export(tmp_path, model), weights="ema")
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(ConfigError, match="does not exist; build the model yourself"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"x")
    export(tmp_path, model)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        load_model(tmp_path)
