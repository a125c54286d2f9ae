"""Stored forms of values from the environment, and rejected secrets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.config.messages import show
from launcher.config.plain import to_plain
from launcher.config.resolve import escaped, unescaped
from launcher.config.secrets import as_stored, secret_issues, without_environment
from launcher.rundir.secret_patterns import SECRET_TEXT, is_secret

VALUE = "s3cret-value-0123456789"


def stored(config: Any) -> dict[str, Any]:
    resolved: Any = OmegaConf.to_container(config, resolve=True)
    return as_stored(to_plain(config), resolved)


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


SECRET_NAMES = [
    "api_key",
    "apiKey",
    "api-key",
    "x-api-key",
    "API_KEY_2",
    "WANDB_API_KEY",
    "account_key",
    "AccountKey",
    "signing_key",
    "encryption_key",
    "openai_key",
    "github_token",
    "sessionToken",
    "session-token",
    "sas_token",
    "accessToken",
    "apiToken",
    "hf_token",
    "password",
    "db_password",
    "pwd",
    "passphrase",
    "secret",
    "clientSecret",
    "client-secret",
    "connection_string",
    "connectionString",
    "credentials",
    "Authorization",
    "service_url",
    "webhook",
    "personal_access_token",
    "github_pat",
]
"""Names under which any text is a secret."""
POSSIBLE_NAMES = ["token", "pat", "sas", "auth", "bearer"]
PLAIN_NAMES = [
    "pad_token",
    "eos_token",
    "num_tokens",
    "tokenizer",
    "key",
    "sort_key",
    "secretary",
    "author",
    "authors",
    "path",
    "patience",
    "key_dim",
    "hidden_keys",
    "keys",
    "monkey",
    "image_key",
    "url",
    "host",
    "dsn",
    "tokens_per_step",
    "max_token_length",
    "token_type",
    "author_token_count",
    "bearing",
    "compass",
    "passes",
    "authentic",
    "state_dict_key",
    "patterns",
    "sasl",
    "dispatch",
    "data.files",
]
SECRET_VALUES = [
    "ghp_" + "a1" * 18,
    "github_pat_" + "a1" * 30,
    "glpat-" + "a1" * 10,
    "hf_" + "aB" * 17,
    "sk-proj-" + "a1" * 20,
    "AKIA0123456789ABCDEF",
    "xoxb-1234567890-abc",
    "postgresql://me:hunter2@host/db",
    "redis://:hunter2hunter2@host:6379",
    "Bearer " + "a1" * 12,
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=0123456789abcdef==;",
    "Server=host;Password=hunter2hunter2;",
    "https://a.blob.core.windows.net/c?sv=2022&sig=0123456789abcdef",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
]
PLAIN_VALUES = [
    "hf_internal_testing_tiny_random_gpt2_of_mine",
    "data/sk-learn-toy-datasets-and-more",
    "postgresql://host/db",
    "https://abc123@sentry.io/1",
    "s3://bucket/a:b/c",
    "Bearer of the token",
    "transformers.GPT2Tokenizer",
    "cosine",
    "host:8080",
]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_any_text_under_the_name_of_a_secret_is_one(name: str) -> None:
    assert is_secret(name)
    for tree in ({"data": {name: "short"}}, {"data": [{"deep": {name: "short"}}]}):
        assert [issue.text[:8] for issue in secret_issues(tree)] == ["a secret"]
    assert list(secret_issues({"hydra": {"job": {"env_set": {name: "short"}}}}))
    assert SECRET_TEXT.search(f'{name} = "0123456789"') or name.lower().startswith(("serv", "webh"))


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_names_of_other_things_are_no_secrets(name: str) -> None:
    assert not is_secret(name)
    assert not list(secret_issues({"model": {name: "0123456789abcdef0123"}}))


@pytest.mark.parametrize("name", POSSIBLE_NAMES)
def test_a_name_with_two_meanings_is_decided_by_its_text(name: str) -> None:
    assert list(secret_issues({"data": {name: "0123456789abcdefXY"}}))
    for plain in ("<cls>", "basic", "images/**/*.jpeg", "a text with some spaces"):
        assert not list(secret_issues({"data": {name: plain}}))


@pytest.mark.parametrize("value", SECRET_VALUES)
def test_texts_that_look_like_secrets_are_found_under_any_key(value: str) -> None:
    for tree in ({"data": {"url": value}}, {"data": {"urls": ["a", value]}}):
        (fault,) = secret_issues(tree)
        assert value not in str(fault)
    assert SECRET_TEXT.search(f"x = '{value}'")


@pytest.mark.parametrize("value", PLAIN_VALUES)
def test_other_texts_are_no_secrets(value: str) -> None:
    assert not list(secret_issues({"data": {"url": value}}))
    assert not SECRET_TEXT.search(f"x = '{value}'")


def test_expressions_are_no_secrets() -> None:
    node = {"token": "<cls>", "api_key": None, "secret": "${oc.env:MINE}", "tokens": ["a" * 20]}
    url = {"url": "https://${oc.env:USER}:${oc.env:PW}@host"}
    assert not list(secret_issues({"model": node, "data": url}))


@given(st.text(min_size=4, max_size=90), st.sampled_from(["{}", "{!r}", "x={!r}: no such file"]))
def test_messages_do_not_show_values_of_the_environment(value: str, form: str) -> None:
    value = "".join(character for character in value if character.isalnum()) + "X1y2"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINE", value)
        patch.setenv("MY_API_KEY", value[::-1])
        for shown, config, name in (
            (form.format(value), "{'a': '${oc.env:MINE}'}", "MINE"),
            (form.format(value[::-1]), "", "MY_API_KEY"),
            (f"a={show(value, 58)}", "${ oc.env: MINE,1}", "MINE"),
        ):
            (message,) = without_environment([shown], config)
            assert value[:50] not in message and f"${{oc.env:{name}}}" in message


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
