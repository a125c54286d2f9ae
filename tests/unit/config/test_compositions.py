"""Values that are applied to a copy of composed groups give what Hydra composes."""

from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from launcher.config.compose.composer import Composer
from launcher.config.compose.overrides import parse
from launcher.config.compose.session import session
from launcher.errors import ConfigError
from support.composition import composed, mistakes

pytestmark = pytest.mark.slow


def compose(words: list[str]) -> DictConfig:
    return hydra_compose("config", words, return_hydra_config=True)


def flags(node: Any) -> Any:
    """The flags of a node and of all inside it."""
    own = {
        name: OmegaConf.is_struct(node) if name == "struct" else OmegaConf.is_readonly(node)
        for name in ("struct", "readonly")
    }
    parts = ((key, node._get_node(key)) for key in node) if isinstance(node, DictConfig) else ()
    return own, {key: flags(part) for key, part in parts if OmegaConf.is_config(part)}


@pytest.mark.parametrize("words", [
    ["+model.more=1", "++seed=3", "~hooks.evaluation", "model=mlp",
     "+optimizer.deep.er=[1,{a: b}]"],
    ["optimizer={lr: 0.2}", "hooks=[default,early_stopping]", "hooks.early_stopping.patience=3"],
    ["hydra.job.name=other", "seed=1", "hydra.job.config.override_dirname.exclude_keys=[seed]",
     "trainer.max_steps=3", "hydra/sweeper=basic"],
    ["run.id='1'", "data.batch_size=${seed}", "tracker=[]",
     "+tracker.more={_target_: launcher.hooks.jsonl.JsonlHook}"],
    ["model=mine", "seed=1", "+more=mine"],
    ["~optimizer.lr", "++optimizer.lr=3", "~hpo.space", "~optimizer.betas"],
])  # fmt: skip
def test_composition_equals_hydras(words, tmp_path):
    """Twice: what was composed first is used again, and has not changed."""
    for group in ("model", "more"):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text("dim: 1\n")
    with session(tmp_path):
        expected = compose(words)
    with session(tmp_path):
        composer = Composer()
        for config in (composer.compose(list(map(parse, words))) for _ in range(2)):
            assert OmegaConf.to_container(config) == OmegaConf.to_container(expected)
            assert list(config) == list(expected) and flags(config) == flags(expected)


@pytest.mark.parametrize("words", [
    ["seed.x=1", "seed=1"], ["optimizer@more=adam", "seed=1"], ["seed@more=3"],
    ["hydra.nothing=1", "seed=1"],
])  # fmt: skip
def test_override_that_hydra_rejects_is_rejected(words):
    with session(None):
        with pytest.raises(HydraException):
            compose(words)
        with pytest.raises(ConfigError):
            Composer().compose(list(map(parse, words)))


def test_value_replaces_one_that_does_not_resolve(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "broken.yaml").write_text(
        "# @package _global_\nmodel:\n  dim: ${nothing.here}\n"
    )
    words = ["+more=broken", "model.dim=64"]
    with session(tmp_path):
        ours = Composer().compose(list(map(parse, words)))
        assert ours.model.dim == compose(words).model.dim == 64


@pytest.mark.parametrize("words", [
    ["precision.init_scale=3",
     "hooks.checkpointing.exit_signals=[SIGUSR1]", "data.batch_size=8",
     "optimizer._target_=torch.optim.AdamW", "~optimizer.no_decay", "optimizer.maximize=true"],
    ["data=digits", "model=supervised", "model.module._target_=torch.nn.ReLU",
     "model.loss._target_=torch.nn.SmoothL1Loss", "model.loss.beta=0.5"],
])  # fmt: skip
def test_an_argument_of_the_constructor_needs_no_plus(words):
    explicit = [
        f"++{word}" if not word.startswith(("data=", "model=", "~")) else word for word in words
    ]
    ours, expected = (OmegaConf.to_container(composed(each)) for each in (words, explicit))
    assert {**ours, "hydra": None} == {**expected, "hydra": None}
    assert ours["hydra"]["overrides"]["task"] == words
    assert mistakes(words) == []
