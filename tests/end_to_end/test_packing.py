"""Packed rows of documents, and models that do or do not separate the documents."""

import json

import pytest
import torch

from launcher.errors import ConfigError
from launcher.models.huggingface import HuggingFaceModel
from launcher.process.rng import rng_state
from launcher.rundir.folder import RunFolder
from launcher.train.build import build_trainer
from launcher.train.packing import keeps_documents_apart
from support.composition import composed, run_of
from support.tokenizer import SIZE, write_tokenizer

pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 32,
}  # fmt: skip
APART = {"llama": SIZES, "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2}}
MIXING = {
    "opt": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 32,
        "word_embed_proj_dim": 32,
    },
    "bert": SIZES | {"is_decoder": True},
}  # fmt: skip
MODELS = APART | MIXING


@pytest.mark.parametrize("model_type", MODELS)
def test_models_of_transformers_are_measured(model_type):
    torch.manual_seed(0)
    config = MODELS[model_type] | {"model_type": model_type}
    model = HuggingFaceModel(vocab_size=64, config=config).eval()
    with torch.no_grad():
        assert keeps_documents_apart(model, 2, 16, 64) is (model_type in APART)
        with torch.autocast("cpu", torch.bfloat16):
            assert keeps_documents_apart(model, 1, 16, 64) is (model_type in APART)


@pytest.fixture(scope="module")
def overrides(tmp_path_factory):
    """A run of documents, whose model is still to be chosen."""
    folder = tmp_path_factory.mktemp("packing")
    write_tokenizer(folder)
    (folder / "a.jsonl").write_text(
        "".join(json.dumps({"text": f"option {i} " * (i % 5 + 1)}) + "\n" for i in range(60))
    )
    return [
        "data=jsonl", f"data.files={folder / 'a.jsonl'}", f"data.tokenizer={folder}",
        "data.seq_len=24",
        f"data.vocab_size={SIZE}", "data.batch_size=8", "trainer.max_steps=2", "device=cpu",
        f"paths.outputs={folder}",
    ]  # fmt: skip


def model_of(model_type: str) -> list[str]:
    return ["model=huggingface", f"model.config={{model_type: {model_type}}}"] + [
        f"+model.config.{key}={value}" for key, value in MODELS[model_type].items()
    ]


def test_packed_documents_are_rejected_for_a_model_that_mixes_them(overrides, tmp_path):
    config = composed([*overrides, *model_of("opt")])
    sentence = (
        r"^data\.pack=true: in OPTForCausalLM the documents of a row see each other.*"
        r" data\.pack=false "
    )
    with pytest.raises(ConfigError, match=sentence):
        build_trainer(run_of(config), RunFolder(tmp_path))
    build_trainer(run_of([*overrides, *model_of("opt"), "data.pack=false"]), RunFolder(tmp_path))


def test_a_measurement_leaves_the_training_as_it_is(overrides, tmp_path):
    states = []
    for pack in ("true", "false"):
        config = composed([*overrides, *model_of("llama"), f"data.pack={pack}"])
        trainer = build_trainer(run_of(config), RunFolder(tmp_path))
        assert trainer.model.training and trainer.data_loader.samples == 0
        assert all(parameter.grad is None for parameter in trainer.model.parameters())
        states.append((rng_state()["torch"], trainer.model.state_dict()))
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
