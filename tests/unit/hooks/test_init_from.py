"""Weights of others: where they are, under what names, and the messages for those that do not fit
or are damaged."""

import logging
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from launcher import BaseTrainer
from launcher.errors import ConfigError
from launcher.hooks.init_from import InitFromHook
from launcher.resume.weights_source import fit_names, open_weights


class Wrapped(nn.Module):
    """A Hugging Face model inside a model of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


class Training(BaseTrainer):
    made: type[nn.Module] = Wrapped

    def build_data_loader(self) -> list[torch.Tensor]:
        return [torch.ones(1)]

    def build_model(self) -> nn.Module:
        return self.made()

    def build_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)


def weights(prefix: str = "") -> dict[str, torch.Tensor]:
    return {
        prefix + name: torch.full_like(p, 7.0) for name, p in Wrapped().model.state_dict().items()
    }


def load(source: Path, strict: bool = True, made: type[nn.Module] = Wrapped) -> nn.Module:
    trainer = Training(max_steps=1, workspace=source.parent / "run", device="cpu")
    trainer.made = made
    trainer.build()
    InitFromHook(source, strict=strict).on_start(trainer)
    return trainer.model


@pytest.mark.parametrize("prefix", ["", "model.", "whole.model.", "net."])
def test_a_file_whatever_is_around_its_names(tmp_path, prefix):
    save_file(weights(prefix), tmp_path / "w.safetensors")
    assert all(bool((p == 7).all()) for p in load(tmp_path / "w.safetensors").parameters())


def test_a_hugging_face_folder(tmp_path):
    """Another file next to the model's is not read."""
    names = sorted(weights())
    for i, name in enumerate(names):
        save_file({name: weights()[name].to(torch.bfloat16)}, tmp_path / f"model-{i}.safetensors")
    save_file({"adapter": torch.ones(1)}, tmp_path / "adapter.safetensors")
    assert sorted(open_weights(tmp_path).names()) == names
    assert all(
        bool((p == 7).all()) and p.dtype == torch.float32 for p in load(tmp_path).parameters()
    )


def test_init_from_reports_shape_mismatch(tmp_path, caplog):
    tensors = weights() | {"1.weight": torch.ones(5, 4), "2.weight": torch.ones(1)}
    del tensors["1.bias"]
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match=r"do not fit.*run\.init_strict=false"):
        load(tmp_path / "w.safetensors")
    caplog.set_level(logging.INFO)
    model = load(tmp_path / "w.safetensors", strict=False)
    assert bool((model.model[0].weight == 7).all()) and model.model[1].weight.shape == (2, 4)  # type: ignore[union-attr, index]
    said = caplog.text
    assert "model.1.weight: shape (5, 4) in the checkpoint, (2, 4) in the model" in said
    assert "model.1.bias: the checkpoint does not have it" in said
    assert "model.2.weight: the model does not have it" in said
    assert "2 of 4" in said


class Turning(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.complex64) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.ones(2, dtype=dtype))
        self.other = nn.Parameter(torch.ones(2))


class NotTurning(Turning):
    def __init__(self) -> None:
        super().__init__(torch.float32)


@pytest.mark.parametrize("made", [Turning, NotTurning])
def test_complex_weights_keep_both_parts(tmp_path, made, caplog):
    tensors = {"turn": torch.full((2,), 2 + 3j), "other": torch.full((2,), 4.0)}
    save_file(tensors, tmp_path / "w.safetensors")
    if made is NotTurning:
        with pytest.raises(ConfigError, match=r"turn: complex in the checkpoint, torch\.float32"):
            load(tmp_path / "w.safetensors", True, made)
    model = load(tmp_path / "w.safetensors", made is Turning, made)
    assert bool((model.other == 4).all())
    assert bool((model.turn == (2 + 3j if made is Turning else 1)).all())
    assert ("turn: complex in the checkpoint" in caplog.text) is (made is NotTurning)


@pytest.mark.parametrize("strict", [True, False])
def test_other_weights_altogether(tmp_path, strict):
    save_file({"a.b": torch.ones(1)}, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match="none of its weights"):
        load(tmp_path / "w.safetensors", strict)


def test_names_of_a_checkpoint_without_its_optimizer(tmp_path):
    stored = {f"model/model.{name}": tensor for name, tensor in weights().items()}
    save_file(
        stored | {"optimizer/model.0.weight/exp_avg": torch.ones(4, 3)}, tmp_path / "w.safetensors"
    )
    assert sorted(
        fit_names(open_weights(tmp_path / "w.safetensors"), Wrapped().state_dict()).names()
    ) == sorted(Wrapped().state_dict())


def header(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


F32 = '{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x10\0\0", "is not a complete safetensors file"),
        (header("{,}"), "is not a complete safetensors file"),
        (header("[" * 100_000), "is not a complete safetensors file"),
        (header(F32) + b"junk" * 2, "is not a complete safetensors file"),
        (header(F32.replace("F32", "F4").replace("[1]", "[8]")) + b"junk", "w has the dtype"),
    ],
)
def test_a_broken_file_is_one_sentence(tmp_path, content, reason):
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        open_weights(path)
    assert str(error.value).startswith(f"run.init_from={path}: w.safetensors")
    assert reason in str(error.value)


def test_init_from_reports_a_path_without_weights(tmp_path):
    with pytest.raises(ConfigError, match="has no weights; use"):
        load(tmp_path)


class TiedNet(nn.Module):
    """One matrix under three names, and one tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        self.norm, self.probe = nn.LayerNorm(3), nn.Module()
        self.head.weight = self.probe.weight = self.embedding.weight


SHARED = ("embedding.weight", "head.weight", "probe.weight")


def load_tied(folder: Path, tensors: dict[str, torch.Tensor], strict: bool = True) -> nn.Module:
    save_file(tensors, folder / "w.safetensors")
    return load(folder / "w.safetensors", strict, TiedNet)


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("names", [SHARED[:1], SHARED[2:], SHARED[1:], SHARED], ids="+".join)
def test_tied_weights_load_under_any_of_their_names(tmp_path, caplog, names, strict, prefix):
    tensors = {f"norm.{name}": torch.full((3,), 5.0) for name in ("weight", "bias")}
    tensors |= {name: torch.full((4, 3), 7.0) for name in names}
    model = load_tied(tmp_path, {prefix + name: tensor for name, tensor in tensors.items()}, strict)
    assert bool((model.embedding.weight == 7).all()) and model.head.weight is model.embedding.weight
    assert bool((model.norm.weight == 5).all()) and "does not have it" not in caplog.text


def test_weights_that_the_model_ties_and_the_file_does_not_are_reported(tmp_path, caplog):
    tensors = {f"norm.{name}": torch.ones(3) for name in ("weight", "bias")}
    tensors |= {"embedding.weight": torch.ones(4, 3), "head.weight": torch.zeros(4, 3)}
    with pytest.raises(ConfigError, match=r"head.weight: the model ties it to"):
        load_tied(tmp_path, tensors)
    assert bool((load_tied(tmp_path, tensors, strict=False).head.weight == 1).all())
    assert "head.weight: the model ties it to embedding.weight" in caplog.text


@pytest.mark.parametrize(
    "name",
    ["init.pt", "last.ckpt", "model.pth", "pytorch_model.bin", "it's.pt", "./pytorch_model.bin"],
)
def test_a_pickle_is_not_read_and_its_conversion_is_shown(tmp_path, monkeypatch, name):
    one = torch.rand(2, 3)
    tensors = weights() | {"tied": one, "to_it": one, "turned": one.T}
    torch.save({"state_dict": tensors} if name.endswith(".ckpt") else tensors, tmp_path / name)
    with pytest.raises(
        ConfigError, match="is a pickle, which is not read since it may run code"
    ) as rejected:
        open_weights(tmp_path if name[0] == "." else tmp_path / name)
    monkeypatch.chdir(tmp_path)
    exec("\n".join(line.strip() for line in str(rejected.value).splitlines()[1:]))
    (converted,) = tmp_path.glob("*.safetensors")
    assert sorted(open_weights(converted).names()) == sorted(tensors)
