"""Text that a model writes."""

from typing import Any

import pytest
import torch
from torch import nn

from launcher.errors import ConfigError
from launcher.hooks.samples import SamplesHook, choose
from launcher.hooks.sources import select_samples
from launcher.models.gpt import GPT
from launcher.models.mlp import MLP
from support.toy import Toy


class Language(Toy):
    vocabulary = 256

    def build_model(self) -> torch.nn.Module:
        torch.manual_seed(0)
        model = GPT(self.vocabulary, 8, dim=8, num_layers=1, num_heads=1, dropout=0.1)
        model.init_weights()
        return model

    def forward(self, input: torch.Tensor) -> Any:
        return self.model((input, input))


BATCH = torch.full((2, 8), ord("a"))


def weights(trainer: Toy) -> list[Any]:
    return [p.tolist() for p in trainer.model.parameters()]


def test_prompts_are_continued_and_training_is_unchanged(tmp_path, caplog):
    caplog.set_level("INFO")
    hook = SamplesHook(["ab", "c"], interval=2, max_new_tokens=12, temperature=0)
    written, plain = Language([hook], 3, tmp_path, [BATCH]), Language([], 3, tmp_path, [BATCH])
    for trainer in (written, plain):
        trainer.train()
    assert weights(written) == weights(plain)
    files = sorted((tmp_path / "samples").iterdir())
    assert [file.name for file in files] == ["step-00000002.txt", "step-00000003.txt"]
    texts = files[1].read_text()
    assert texts.startswith("ab") and "\n\nc" in texts
    assert "Step 3: the model writes:\nab" in caplog.text


def test_control_characters_that_a_model_writes_are_logged_as_text(tmp_path, caplog):
    """A terminal would obey them. The file has them as they are."""
    caplog.set_level("INFO")
    hook = SamplesHook(["a\x1b[2J\x07\tb\nc"], interval=1, max_new_tokens=1, temperature=0)
    Language([hook], 1, tmp_path, [BATCH]).train()
    assert "the model writes:\na\\x1b[2J\\x07\tb\nc" in caplog.text
    assert "\x1b" not in caplog.text
    assert "a\x1b[2J\x07\tb\nc" in (tmp_path / "samples/step-00000001.txt").read_text()


def test_equal_weights_write_equal_text(tmp_path):
    texts = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        Language([SamplesHook("x", 1, seed=seed, top_k=200)], 1, tmp_path / name, [BATCH]).train()
        texts.append((tmp_path / name / "samples" / "step-00000001.txt").read_bytes())
    assert texts[0] == texts[1] != texts[2]


def test_tokens_that_are_no_bytes(tmp_path):
    class Numbers(Language):
        vocabulary = 100

    Numbers([SamplesHook("17 4", 1, max_new_tokens=3)], 1, tmp_path / "a", [BATCH]).train()
    words = (tmp_path / "a" / "samples" / "step-00000001.txt").read_text().split()
    assert words[:2] == ["17", "4"] and len(words) == 5 and all(int(word) < 100 for word in words)
    hook = SamplesHook(
        "hi",
        1,
        max_new_tokens=3,
        encode=lambda text: [len(text)],
        decode=lambda tokens: f"<{tokens[0]}>",
    )
    Numbers([hook], 1, tmp_path / "b", [BATCH]).train()
    assert (tmp_path / "b" / "samples" / "step-00000001.txt").read_text() == "<2>\n"
    for prompt in ("some words", "100", ""):
        with pytest.raises(ConfigError, match="must be one or several tokens from 0 to 99"):
            Numbers([SamplesHook(prompt)], 1, tmp_path / "c", [BATCH]).train()


class Pooled(nn.Module):
    launcher_methods = ("logits",)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(x), 3)


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (MLP(num_features=4, num_classes=3), "raises RuntimeError: "),
        (Pooled(), r"it returns scores of shape \(1, 3\)"),
        (nn.Linear(4, 3), "raises AttributeError: "),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_model_of_no_language_is_rejected(tmp_path, model, problem):
    class Other(Toy):
        def build_model(self) -> nn.Module:
            model.register_parameter("weight", nn.Parameter(torch.zeros(1)))
            return model

    name = type(model).__name__
    with pytest.raises(ConfigError, match=rf"^hooks\.samples: .* {name}\.logits.* {problem}"):
        Other([SamplesHook()], 1, tmp_path).train()


def test_choice():
    scores, generator = torch.tensor([0.0, 3.0, 1.0, 2.9]), torch.Generator().manual_seed(0)
    assert choose(scores, 0, None, generator) == 1
    assert {choose(scores, 5.0, 2, generator) for _ in range(100)} == {1, 3}
    assert {choose(scores, 100.0, None, generator) for _ in range(200)} == {0, 1, 2, 3}


def test_samples_of_a_batch_with_texts_and_an_empty_list_are_selected():
    batch = {"x": torch.arange(3), "name": ["a", "b", "c"], "tags": []}
    selected = select_samples(batch, torch.tensor([2, 0]))
    assert selected["x"].tolist() == [2, 0]
    assert selected["name"] == ["c", "a"] and selected["tags"] == []
