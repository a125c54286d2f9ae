"""Stored forms of values from the environment, and rejected secrets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.config.resolve import escaped, stored, unescaped
from launcher.config.secrets import as_stored, is_secret, secret_issues

VALUE = "s3cret-value-0123456789"


def stored_of(tree: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("MINE", VALUE)
    return stored(OmegaConf.create(tree))


@pytest.mark.parametrize(
    "tree",
    [
        {"tracker": {"api_key": "${oc.env:MINE}"}},
        {"tracker": {"api_key": "${oc.env:MINE,none}"}},
        {"tracker": {"url": "https://${oc.env:MINE}@host"}},
        {"tracker": {"url": "${my.word}"}, "my": {"word": "${oc.env:MINE}"}},
        {"tracker": {"url": "x-${my.word}-${seed}"}, "my": {"word": "a${oc.env:MINE}"}, "seed": 3},
        {"tracker": {"url": "${.word}", "word": "${..word}"}, "word": "${oc.env:MINE}"},
        {"tracker": "${my}", "my": {"word": "${oc.env:MINE}", "number": 1}},
        {"tracker": [{"url": "${oc.env:MINE}"}, "${oc.env:MINE}"]},
        {"tracker": {"url": "${oc.decode:'${oc.env:MINE}'}"}},
        {"tracker": {"url": "${oc.select:my.word,null}"}, "my": {"word": "${oc.env:MINE}"}},
        {"run": {"tag": "${oc.env:MINE}", "dir": "there"}},
    ],
)
def test_values_of_the_environment_are_stored_as_expressions(tree, monkeypatch) -> None:
    kept = stored_of(tree, monkeypatch)
    assert VALUE not in str(kept)
    resolved = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    assert OmegaConf.to_container(OmegaConf.create(kept), resolve=True) == resolved
    for key, node in kept.items():  # a part of it can be resolved alone
        assert OmegaConf.to_container(OmegaConf.create({key: node}), resolve=True) == {
            key: resolved[key]
        }
    monkeypatch.setenv("MINE", "another")
    assert "another" in str(OmegaConf.to_container(OmegaConf.create(kept), resolve=True))


@given(
    st.dictionaries(
        st.sampled_from("abc"), st.sampled_from(["1", "${x}", "${y.a}", "t-${x}", "[${x}]"])
    )
)
def test_other_values_are_stored_resolved(node: dict[str, str]) -> None:
    config = OmegaConf.create({"x": 1.5, "y": {"a": None}, "z": node, "deep": [node]})
    assert stored(config) == OmegaConf.to_container(config, resolve=True)


def test_places_and_lengths_are_stored_resolved(monkeypatch) -> None:
    tree = {
        "paths": {"outputs": "${oc.env:MINE}/runs"},
        "run": {"dir": "${paths.outputs}/a", "name": "${oc.env:MINE}"},
        "trainer": {"max_steps": "${oc.decode:${oc.env:STEPS}}"},
    }
    monkeypatch.setenv("STEPS", "7")
    kept = stored_of(tree, monkeypatch)
    assert kept["paths"]["outputs"] == f"{VALUE}/runs" and kept["run"]["dir"] == f"{VALUE}/runs/a"
    assert kept["trainer"]["max_steps"] == 7


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        ({"tracker": {"settings": {"api_key": VALUE}}}, "tracker.settings.api_key"),
        ({"tracker": {"WANDB_API_KEY": VALUE}}, "tracker.WANDB_API_KEY"),
        ({"model": {"token": VALUE}}, "model.token"),
        ({"model": {"hf_token": "short"}}, "model.hf_token"),
        ({"data": [{"password": "short"}]}, "data.0.password"),
        ({"tracker": {"password": "${my.word}"}, "my": {"word": VALUE}}, "tracker.password"),
        ({"hydra": {"job": {"env_set": {"MY_SECRET": VALUE}}}}, "hydra.job.env_set.MY_SECRET"),
    ],
)
def test_a_secret_that_is_written_out_is_refused_without_showing_it(tree, key) -> None:
    (fault,) = secret_issues(tree)
    assert str(fault).startswith(
        f"{key}: a secret would be stored with the run; "
    ) and VALUE not in str(fault)


@pytest.mark.parametrize(
    "name", ["pad_token", "eos_token", "num_tokens", "tokenizer", "key", "sort_key", "secretary"]
)
def test_words_of_vocabularies_and_keys_are_no_secrets(name) -> None:
    assert not is_secret(name)
    assert (
        list(
            secret_issues(
                {"model": {"token": "<cls>", "api_key": None, "secret": "${oc.env:MINE}"}}
            )
        )
        == []
    )


def test_a_secret_of_any_resolver_is_stored_as_an_expression() -> None:
    written = {"tracker": {"password": "${vault:mine}", "host": "${vault:host}"}}
    resolved = {"tracker": {"password": VALUE, "host": "a.b"}}
    assert as_stored(written, resolved) == {"tracker": {"password": "${vault:mine}", "host": "a.b"}}


TEXTS = st.text(alphabet="a\\${}:", max_size=8)


@given(
    st.dictionaries(
        st.sampled_from(["a", "api_key"]), st.one_of(TEXTS, st.lists(TEXTS, max_size=2)), max_size=2
    )
)
def test_escaping_is_reversed(tree: dict[str, Any]) -> None:
    assert unescaped(escaped(tree)) == tree


def test_expressions_are_not_escaped_and_other_texts_are(monkeypatch) -> None:
    monkeypatch.setenv("MINE", VALUE)
    kept = stored(
        OmegaConf.create(
            {"a": "${oc.env:MINE}", "lines": ["cd \\${HOME}"], "api_key": "${b}", "b": "c"}
        )
    )
    again = OmegaConf.create(escaped(kept))
    expected = {"a": VALUE, "lines": ["cd ${HOME}"], "api_key": "c", "b": "c"}
    assert OmegaConf.to_container(again, resolve=True) == expected
    assert stored(again) == kept
    assert VALUE not in OmegaConf.to_yaml(again)
