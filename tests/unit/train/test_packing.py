"""Models that do or do not separate the documents of a packed row."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from launcher.errors import ConfigError
from launcher.models.huggingface import HuggingFaceModel
from launcher.process.rng import rng_state
from launcher.rundir.folder import RunFolder
from launcher.train.build import build_trainer
from launcher.train.packing import keeps_documents_apart
from support.composition import composed, run_of
from support.tokenizer import SIZE, write_tokenizer

needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="needs transformers"
)

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 32,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2}
OPT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "ffn_dim": 32,
    "word_embed_proj_dim": 32,
}
APART = {
    "llama": GROUPED,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
}  # fmt: skip
MIXING = {
    "opt": OPT,
    "bert": SIZES | {"is_decoder": True},
}  # fmt: skip


@needs_transformers
@pytest.mark.parametrize("model_type", [*APART, *MIXING])
def test_models_of_transformers_are_measured(model_type: str) -> None:
    torch.manual_seed(0)
    config = {**APART, **MIXING}[model_type] | {"model_type": model_type}
    model = HuggingFaceModel(vocab_size=64, config=config).eval()
    with torch.no_grad():
        assert keeps_documents_apart(model, 2, 16, 64) is (model_type in APART)
        with torch.autocast("cpu", torch.bfloat16):
            assert keeps_documents_apart(model, 1, 16, 64) is (model_type in APART)


class Own(nn.Module):
    """A model of a user's own: each token and a share of those before it. Its records have no
    logits."""

    def __init__(self, share: float, by_document: bool):
        super().__init__()
        self.share, self.by_document = share, by_document
        self.embedding = nn.Embedding(16, 16)

    def forward(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        document = (batch["position_ids"] == 0).cumsum(1)
        seen = torch.ones(document.shape[1], document.shape[1]).tril(-1)
        if self.by_document:
            seen = seen * (document[:, :, None] == document[:, None, :])
        x = self.embedding(batch["input_ids"])
        logits = x + self.share * (seen @ x)
        return (
            nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
            ),
            {},
        )


@pytest.mark.parametrize(
    ("share", "by_document", "expected"),
    [(1.0, True, True), (1.0, False, False), (1e-3, False, False), (0.0, False, True)],
)
def test_the_loss_is_compared_where_there_are_no_logits(
    share: float, by_document: bool, expected: bool
) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        assert keeps_documents_apart(Own(share, by_document), 2, 16, 16) is expected


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
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
    settings = {**APART, **MIXING}[model_type]
    return ["model=huggingface", f"model.config={{model_type: {model_type}}}"] + [
        f"+model.config.{key}={value}" for key, value in settings.items()
    ]


@needs_transformers
def test_packed_documents_are_rejected_for_a_model_that_mixes_them(
    overrides: list[str], tmp_path: Path
) -> None:
    config = composed([*overrides, *model_of("opt")])
    sentence = (
        r"^data\.pack=true: in OPTForCausalLM the documents of a row see each other.*"
        r" data\.pack=false "
    )
    with pytest.raises(ConfigError, match=sentence):
        build_trainer(run_of(config), RunFolder(tmp_path))
    build_trainer(run_of([*overrides, *model_of("opt"), "data.pack=false"]), RunFolder(tmp_path))


@needs_transformers
def test_a_measurement_leaves_the_training_as_it_is(overrides: list[str], tmp_path: Path) -> None:
    states = []
    for pack in ("true", "false"):
        config = composed([*overrides, *model_of("llama"), f"data.pack={pack}"])
        trainer = build_trainer(run_of(config), RunFolder(tmp_path))
        assert trainer.model.training and trainer.data_loader.samples == 0
        assert all(parameter.grad is None for parameter in trainer.model.parameters())
        states.append((rng_state()["torch"], trainer.model.state_dict()))
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
