"""Stored forms of values from the environment, and rejected secrets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.config.messages import show
from launcher.config.omegaconf_nodes import to_plain
from launcher.config.secrets import config_to_store, secret_issues, without_environment
from launcher.rundir.secret_patterns import SECRET_TEXT, is_secret

VALUE = "s3cret-value-0123456789"


def stored(config: Any) -> dict[str, Any]:
    resolved: Any = OmegaConf.to_container(config, resolve=True)
    return config_to_store(to_plain(config), resolved)


def issues_of(tree: dict[str, Any]) -> list[str]:
    plain: Any = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    return list(map(str, secret_issues(tree, plain, config_to_store(tree, plain))))


EXCLUDED = {"identity_exclude": ["run", "data.options", "job"]}
KEPT = [
    {"tracker": {"api_key": "${oc.env:MINE}"}},
    {"tracker": {"api_key": "${oc.env:MINE,none}"}},
    {"tracker": {"url": "https://${oc.env:MINE}@host"}},
    {"tracker": {"url": "${paths.word}"}, "paths": {"word": "${oc.env:OTHER}"}},
    {"tracker": {"url": "x-${seed}-${oc.env:MINE}"}, "seed": 3},
    {"tracker": [{"url": "${oc.env:MINE}"}, "${oc.env:MINE}"]},
    {"tracker": {"url": "${oc.decode:'${oc.env:MINE}'}"}},
    {"dispatch": {"setup": ["export X=${oc.env:MINE}"]}},
    {"data": {"options": {"key": "${oc.env:MINE}"}}},
    {"job": {"file": "${oc.env:MINE}"}},
    {"run": {"note": "${oc.env:MINE}"}},
]


@pytest.mark.parametrize("tree", KEPT)
def test_values_of_the_environment_are_stored_as_written_if_the_id_leaves_them_out(
    tree, monkeypatch
):
    monkeypatch.setenv("OTHER", "word")
    tree = tree | {"run": EXCLUDED | tree.get("run", {})}
    monkeypatch.setenv("MINE", VALUE)
    kept = stored(OmegaConf.create(tree))
    assert VALUE not in str(kept) and not issues_of(tree)
    resolved: Any = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    assert OmegaConf.to_container(OmegaConf.create(kept), resolve=True) == resolved
    for key, node in kept.items():  # a part of it can be resolved alone
        assert OmegaConf.to_container(OmegaConf.create({key: node}), resolve=True) == {
            key: resolved[key]
        }
    assert stored(OmegaConf.create(kept)) == kept  # and it is stored in the same way again
    for name in ("MINE", "OTHER"):
        monkeypatch.setenv(name, "another")
    assert "another" in str(OmegaConf.to_container(OmegaConf.create(kept), resolve=True))


@given(
    st.dictionaries(
        st.sampled_from("abc"), st.sampled_from(["1", "${x}", "${y.a}", "t-${x}", "[${x}]"])
    ),
    st.sampled_from(["z", "tracker"]),
)
def test_other_values_are_stored_resolved(node, key):
    config = OmegaConf.create({"x": 1.5, "y": {"a": None}, key: node, "deep": [node]})
    assert stored(config) == OmegaConf.to_container(config, resolve=True)


def test_everything_else_is_stored_resolved(monkeypatch):
    tree = {
        "paths": {"outputs": "${oc.env:MINE}/runs"},
        "run": {
            "dir": "${paths.outputs}/a",
            "name": "${oc.env:MINE}",
            "tag": "${oc.env:MINE}",
            "identity_exclude": ["run", "paths", "trainer.pause_at"],
        },
        "trainer": {"max_steps": "${oc.decode:${oc.env:STEPS}}", "pause_at": "${oc.env:STEPS}"},
        "data": {"files": "${oc.env:MINE}/x", "class_weights": {0: "${oc.env:STEPS}"}},
    }
    monkeypatch.setenv("STEPS", "7")
    monkeypatch.setenv("MINE", VALUE)
    assert stored(OmegaConf.create(tree)) == OmegaConf.to_container(
        OmegaConf.create(tree), resolve=True
    )


IN_THE_CLASS = "read it from the environment in the class, by os.environ['{}']."
AS_VARIABLE = "export it as a variable, and use '{}=${{oc.env:{}}}'."


@pytest.mark.parametrize(("tree", "key", "way"), [
    ({"tracker": {"s": {"api_key": VALUE}}}, "tracker.s.api_key", AS_VARIABLE),
    ({"tracker": {"WANDB_API_KEY": VALUE}}, "tracker.WANDB_API_KEY", AS_VARIABLE),
    ({"tracker": {"password": "${my.word}"}, "my": {"word": VALUE}}, "tracker.password", None),
    (
        {"tracker": {"a": {"password": "${oc.env:MINE}"}, "b": "x ${tracker.a.password}"}},
        "tracker.b", None,
    ),
    ({"model": {"token": VALUE}}, "model.token", IN_THE_CLASS),
    ({"model": {"token": "${oc.env:MINE}"}}, "model.token", IN_THE_CLASS),
    ({"model": {"hf_token": "short"}}, "model.hf_token", IN_THE_CLASS),
    ({"data": [{"password": "short"}]}, "data.0.password", IN_THE_CLASS),
    ({"data": {"password": "${oc.env:MINE}"}}, "data.password", IN_THE_CLASS),
    ({"data": {"url": "http://me:${oc.env:MINE}@h"}}, "data.url", IN_THE_CLASS),
    ({"data": {"options": {"sas_token": "x"}}}, "data.options.sas_token", None),
    ({"hydra": {"job": {"env_set": {"MY_SECRET": VALUE}}}}, "hydra.job.env_set.MY_SECRET", None),
])  # fmt: skip
def test_a_secret_that_would_be_stored_is_rejected_without_showing_it(tree, key, way, monkeypatch):
    monkeypatch.setenv("MINE", VALUE)
    (issue,) = issues_of({"run": EXCLUDED, **tree})
    assert issue.startswith(f"{key}: a secret would be stored with the run; ")
    assert VALUE not in issue
    name = key.rpartition(".")[2].upper()
    assert way is None or issue.endswith(way.format(*([key] * (way is AS_VARIABLE)), name))


SECRET_NAMES = [
    "api_key", "apiKey", "api-key", "x-api-key", "API_KEY_2", "WANDB_API_KEY", "account_key",
    "AccountKey", "signing_key", "encryption_key", "openai_key", "github_token", "sessionToken",
    "session-token", "sas_token", "accessToken", "apiToken", "hf_token", "password", "db_password",
    "pwd", "passphrase", "secret", "clientSecret", "client-secret", "connection_string",
    "connectionString", "credentials", "Authorization", "service_url", "webhook",
    "personal_access_token", "github_pat",
]  # fmt: skip
"""Names under which any text is a secret."""
POSSIBLE_NAMES = ["token", "pat", "sas", "auth", "bearer"]
PLAIN_NAMES = [
    "pad_token", "eos_token", "num_tokens", "tokenizer", "key", "sort_key", "secretary", "author",
    "authors", "path", "patience", "key_dim", "hidden_keys", "keys", "monkey", "image_key", "url",
    "host", "dsn", "tokens_per_step", "max_token_length", "token_type", "author_token_count",
    "bearing", "compass", "passes", "authentic", "state_dict_key", "patterns", "sasl", "dispatch",
    "data.files",
]  # fmt: skip
SECRET_VALUES = [
    "ghp_" + "a1" * 18, "github_pat_" + "a1" * 30, "glpat-" + "a1" * 10, "hf_" + "aB" * 17,
    "sk-proj-" + "a1" * 20, "AKIA0123456789ABCDEF", "xoxb-1234567890-abc", "Bearer " + "a1" * 12,
    "postgresql://me:hunter2@host/db", "redis://:hunter2hunter2@host:6379",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=0123456789abcdef==;",
    "Server=host;Password=hunter2hunter2;", "-----BEGIN OPENSSH PRIVATE KEY-----",
    "https://a.blob.core.windows.net/c?sv=2022&sig=0123456789abcdef",
]  # fmt: skip
PLAIN_VALUES = [
    "hf_internal_testing_tiny_random_gpt2_of_mine", "data/sk-learn-toy-datasets-and-more",
    "postgresql://host/db", "https://abc123@sentry.io/1", "s3://bucket/a:b/c", "cosine",
    "Bearer of the token", "transformers.GPT2Tokenizer", "host:8080",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_any_text_under_the_name_of_a_secret_is_one(name):
    assert is_secret(name)
    for tree in ({"data": {name: "short"}}, {"data": [{"deep": {name: "short"}}]}):
        (issue,) = issues_of(tree)
        assert ": a secret would be stored" in issue
    assert issues_of({"hydra": {"job": {"env_set": {name: "short"}}}})
    assert SECRET_TEXT.search(f'{name} = "0123456789"') or name.lower().startswith(("serv", "webh"))


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_names_of_other_things_are_no_secrets(name):
    assert not is_secret(name)
    assert not (issues_of({"model": {name: "0123456789abcdef0123"}}))


@pytest.mark.parametrize("name", POSSIBLE_NAMES)
def test_a_name_with_two_meanings_is_decided_by_its_text(name):
    assert issues_of({"data": {name: "0123456789abcdefXY"}})
    for plain in ("<cls>", "basic", "images/**/*.jpeg", "a text with some spaces"):
        assert not (issues_of({"data": {name: plain}}))


@pytest.mark.parametrize("value", SECRET_VALUES)
def test_texts_that_look_like_secrets_are_found_under_any_key(value):
    for tree in ({"data": {"url": value}}, {"data": {"urls": ["a", value]}}):
        (fault,) = issues_of(tree)
        assert value not in str(fault)
    assert SECRET_TEXT.search(f"x = '{value}'")


@pytest.mark.parametrize("value", PLAIN_VALUES)
def test_other_texts_are_no_secrets(value):
    assert not (issues_of({"data": {"url": value}}))
    assert not SECRET_TEXT.search(f"x = '{value}'")


def test_expressions_are_no_secrets(monkeypatch):
    monkeypatch.setenv("MINE", VALUE)
    node = {"token": "<cls>", "api_key": None, "secret": "", "tokens": ["a" * 20]}
    url = {"url": "https://${oc.env:MINE}:${oc.env:MINE}@host", "api_key": "${oc.env:MINE,null}"}
    assert not issues_of({"model": node, "tracker": url})


@given(st.text(min_size=4, max_size=90), st.sampled_from(["{}", "{!r}", "x={!r}: no such file"]))
def test_messages_do_not_show_values_of_the_environment(value, form):
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


def test_a_folder_stays_a_path(tmp_path, monkeypatch):
    """PWD is named like a password."""
    monkeypatch.setenv("PWD", str(tmp_path))
    message = f"data.files='t.csv': matches no file (looked in {tmp_path})."
    assert is_secret("PWD") and without_environment([message]) == [message]


def test_a_secret_of_any_resolver_is_stored_as_written():
    written = {"tracker": {"password": "${vault:mine}", "host": "${vault:host}"}}
    resolved = {"tracker": {"password": VALUE, "host": "a.b"}}
    kept = config_to_store(written, resolved)
    assert kept == {"tracker": {"password": "${vault:mine}", "host": "a.b"}}
    assert not list(secret_issues(written, resolved, kept))


TEXTS = st.text(alphabet="a\\${}:", max_size=8)


@given(
    st.dictionaries(
        st.sampled_from(["a", "api_key"]), st.one_of(TEXTS, st.lists(TEXTS, max_size=2)), max_size=2
    )
)
def test_texts_are_read_again_as_they_are(tree):
    again = OmegaConf.create(config_to_store({}, {"tracker": tree}))
    assert OmegaConf.to_container(again, resolve=True) == {"tracker": tree}


@pytest.mark.parametrize(("labels", "way"), [
    (["xoxb-1234567890-abcdefghijk"], "'run.labels=[${oc.env:LABELS}]'"),
    (["a", "xoxb-1234567890-abcdefghijk"], "'run.labels=[...,${oc.env:LABELS}]'"),
])  # fmt: skip
def test_a_secret_in_a_list_is_answered_by_a_list(labels, way):
    (issue,) = issues_of({"run": {"labels": labels, "identity_exclude": ["run"]}})
    assert issue.endswith(f"export it as a variable, and use {way}.")
