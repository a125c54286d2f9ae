"""Hydra in process: composes as Hydra's own loader does."""

from pathlib import Path
from typing import Any

import pytest
from hydra import compose
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from launcher.config import session
from launcher.config.diagnose import diagnose


def hydras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions with Hydra's own loader."""
    monkeypatch.setattr(session, "GroupsFirst", session.ConfigLoaderImpl)


def composed(words: list[str], config_dir: Path | None = None) -> DictConfig:
    with session.session(config_dir):
        return compose("config", words, return_hydra_config=True)


def flags(node: Any) -> Any:
    """The flags of a node and of all inside it."""
    own = {name: OmegaConf.is_struct(node) if name == "struct" else OmegaConf.is_readonly(node)
           for name in ("struct", "readonly")}  # fmt: skip
    parts = ((key, node._get_node(key)) for key in node) if isinstance(node, DictConfig) else ()
    return own, {key: flags(part) for key, part in parts if OmegaConf.is_config(part)}


@pytest.mark.parametrize("words", [
    ["optimizer.lr=0.1", "model=mlp", "seed=2", "data=digits"],
    ["+model.more=1", "++seed=3", "~hooks.evaluation", "model=mlp", "+optimizer.deep.er=[1,{a: b}]"],
    ["optimizer={lr: 0.2}", "hooks=[default,early_stopping]", "hooks.early_stopping.patience=3"],
    ["hydra.job.name=other", "seed=1", "hydra.job.config.override_dirname.exclude_keys=[seed]", "trainer.max_steps=3"],
    ["run.id='1'", "tracker=[]", "+tracker.more={_target_: launcher.hooks.jsonl.JsonlHook}", "hydra/sweeper=basic"],
    ["data.batch_size=${seed}", "seed=4", "+hydra.job.env_set.A=b"],
    ["hydra.searchpath=[file://{folder}]", "model=mine", "seed=1"],
    ["seed=1", "+more=mine"],
])  # fmt: skip
def test_a_run_composes_as_hydra_composes_it(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice: what was composed first is used again, and has not changed."""
    for group in ("model", "more"):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text("dim: 1\n")
    folder = tmp_path if "+more=mine" in words else None
    words = [word.replace("{folder}", str(tmp_path)) for word in words]
    with session.session(folder):
        twice = [compose("config", words, return_hydra_config=True) for _ in range(2)]
    hydras(monkeypatch)
    expected = composed(words, folder)
    for config in twice:
        assert OmegaConf.to_container(config) == OmegaConf.to_container(expected)
        assert list(config) == list(expected) and flags(config) == flags(expected)


@pytest.mark.parametrize("words", [
    ["optimizer.lrr=1"],
    ["seed=1", "model=gtp"],
    ["seed.x=1", "seed=1"],
    ["optimizer@more=adam", "seed=1"],
    ["~seed=3"],
    ["hydra.nothing=1", "seed=1"],
    ["seed=1", "+seed=2", "model=mlp", "optimizer.lrr=1", "trainer.max_steps=0"],
])  # fmt: skip
def test_a_fault_is_the_one_that_hydra_reports(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with session.session(None):
        with pytest.raises(HydraException) as ours:
            compose("config", words)
        sentences = diagnose(words, in_session=True)
    hydras(monkeypatch)
    with pytest.raises(HydraException) as theirs:
        composed(words)
    assert str(ours.value) == str(theirs.value)
    assert sentences == diagnose(words)


@pytest.mark.parametrize("words", [
    ["precision.init_scale=3"],
    ["optimizer._target_=torch.optim.AdamW", "~optimizer.no_decay", "optimizer.maximize=true"],
    ["data=digits", "model=supervised", "model.module._target_=torch.nn.Linear", "model.module.in_features=2",
     "model.module.out_features=2"],
    ["hooks.checkpointing.exit_signals=[SIGUSR1]", "data.batch_size=8"],
    ["hydra.searchpath=[pkg://launcher]", "precision.init_scale=3"],
])  # fmt: skip
def test_an_argument_of_the_constructor_needs_no_plus(words: list[str]) -> None:
    explicit = [f"++{word}" if not word.startswith(("data=", "model=", "hydra.", "~")) else word for word in words]
    written, expected = (OmegaConf.to_container(composed(each)) for each in (words, explicit))
    assert {**written, "hydra": None} == {**expected, "hydra": None}
    assert written["hydra"]["overrides"]["task"] == [word for word in words if not word.startswith("hydra.")]
    assert diagnose(words) == []


@pytest.mark.parametrize("word", ["precision.nothing=3", "trainer.nothing=3", "nothing.key=1", "data.dataset.x=1"])
def test_a_key_that_no_constructor_has_is_an_error(word: str) -> None:
    with pytest.raises(HydraException):
        composed([word])
    assert len(diagnose(["model=mlp", "data=digits", word])) == 1


def test_a_diagnosis_composes_no_groups_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compositions, original = [], session.ConfigLoaderImpl.load_configuration

    def load(self: Any, name: str, words: list[str], *options: Any) -> DictConfig:
        compositions.append(words)
        return original(self, name, words, *options)

    monkeypatch.setattr(session.ConfigLoaderImpl, "load_configuration", load)
    words = ["model=mlp", "optimizer.lrr=1", "seed=2"]
    with session.session(None):
        with pytest.raises(HydraException):
            compose("config", words)
        assert len(diagnose(words, in_session=True)) == 1
    assert compositions == [["model=mlp"]]
