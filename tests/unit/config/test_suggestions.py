"""Suggestions can be typed, and are other lines than the rejected one."""

import shlex

import pytest

from support.composition import mistakes
from support.projects import in_project

pytestmark = pytest.mark.slow

PACKAGE = """
from dataclasses import dataclass


@dataclass
class Sub:
    width: int = 1


class Net:
    def __init__(
        self,
        width: int = 4,
        depth: int = 2,
        kind: str = "a",
        names: list[str] | None = None,
        sizes: list[int] | None = None,
        opts: dict | None = None,
        cls: object = None,
        other: object = None,
        others: list[Sub] | None = None,
    ):
        pass
"""
FILES = {
    "suggestions_package.py": PACKAGE,
    "conf/model/net.yaml": (
        "_target_: suggestions_package.Net\nwidth: 4\nother: null\n"
        "others: [{_target_: suggestions_package.Sub, width: 1}]\n"
    ),
    "conf/model/deep/first.yaml": "_target_: suggestions_package.Net\n",
    "conf/model/deep/fourth.yaml": "_target_: suggestions_package.Net\n",
    "conf/experiment/mine.yaml": "# @package _global_\ndefaults:\n  - override /model: net\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with in_project(tmp_path_factory.mktemp("project"), FILES) as project:
        yield project / "conf"


@pytest.mark.parametrize(("typed", "suggested"), [
    ("model.kind=a~b", "model.kind=\"a~b\""),
    ("model.kind=it's", "model.kind=\"it's\""),
    ("model.names=[a,~]", None),
    ("model.sizes=(3,4)", None),
    ("model.kind=nan", "model.kind=\"nan\""),
    ("model.kind=1", "model.kind=\"1\""),
    ("model.kind=true", "model.kind=\"true\""),
    ("trainer.max_steps=1e3", "trainer.max_steps=1000"),
    ("trainer.max_steps = 3", "trainer.max_steps=3"),
    ("model.widht=3", "model.width=3"),
    ("model=deep/forth", "model=deep/fourth"),
    ("model=conf/model/net.yaml", "model=net"),
    ("experiment=conf/experiment/mine.yaml", "experiment=mine"),
    ("~model.depth", None),
    ("model.names.0=bird", None),
    ("model.others.2.width=9", "model.others.0"),
    ("trainer.accumulate_grad_batches=2", "trainer.micro_batch_size"),
    ("model._target_=", "name a class or function"),
])  # fmt: skip
def test_a_suggestion_can_be_typed(typed, suggested, folder):
    others = [] if typed.startswith("model=") else ["model=net"]
    messages = mistakes([*others, "data=digits", typed], folder)
    assert messages and all(typed not in message.partition(typed)[2] for message in messages)
    if suggested is None:
        assert "did you mean" not in messages[0]
        return
    (message,) = messages
    assert suggested in message or shlex.quote(suggested) in message
    if "=" in suggested:
        assert mistakes([*others, "data=digits", suggested], folder) == []


@pytest.mark.parametrize("words", [
    "model.cls._target_=torch.nn.ReLU",  # an argument that the YAML leaves out
    "model.other._target_=torch.nn.ReLU",  # null in the YAML
    "model.cls._target_=torch.nn.Linear model.cls.in_features=1 model.cls.out_features=2",
    "model.opts.a.b=1",
    "model.others.0._target_=suggestions_package.Sub",
])  # fmt: skip
def test_a_part_may_be_made_of_an_argument(words, folder):
    assert mistakes(["model=net", "data=digits", *words.split()], folder) == []


@pytest.mark.parametrize(("words", "expected"), [
    (
        ["model.width=${model.depth}", "model.depth=${model.width}"],
        "model.width=${model.depth} and model.depth=${model.width}: refer to each other; give",
    ),
    (["model.width=${model.width}"], "model.width=${model.width}: refers to itself; give"),
    (
        ["model.kind=${model.opts}", 'model.opts="${oc.decode:${model.kind}}"'],
        "model.kind=${model.opts} and model.opts=${oc.decode:${model.kind}}: refer to each",
    ),
    (
        ["model.width=${seed}", "seed=${data.batch_size}", "data.batch_size=${model.width}"],
        "data.batch_size=${model.width} and model.width=${seed} and seed=${data.batch_size}: refer",
    ),
    (["seed=${run.id}", "run.id=${seed}"], "seed=${run.id}: refers to itself; give"),
])  # fmt: skip
def test_a_circular_reference_names_its_keys(words, expected, folder):
    messages = mistakes(["model=net", "data=digits", *words], folder)
    (message,) = [text for text in messages if ": refer" in text]
    assert message.startswith(expected)
    assert not any("run.id=${launcher.id:}" in text for text in messages)


@pytest.mark.parametrize("text", ["12:30:45", "017", "yes", "1.10", "0x1F", "1_0"])
@pytest.mark.parametrize("name", ["model/quoted", "experiment/quoted", "config"])
def test_a_text_that_yaml_reads_as_another_type_names_its_file(tmp_path, text, name):
    target = "_target_: suggestions_package.Net\n"
    files = {
        "conf/model/quoted.yaml": f"{target}kind: {text}\n" if "model" in name else target,
        "conf/experiment/quoted.yaml": (
            "# @package _global_\ndefaults: [{override /model: quoted}]\n"
            + (f"model: {{kind: {text}}}\n" if "experiment" in name else "")
        ),
        "conf/config.yaml": f"model: {{kind: {text}}}\n" if name == "config" else "",
    }
    with in_project(tmp_path, {"suggestions_package.py": PACKAGE, **files}) as folder:
        (message,) = mistakes(["experiment=quoted", "data=digits"], folder / "conf")
        assert f"a text needs quotes in {folder / 'conf' / name}.yaml" in message
        (message,) = mistakes(["experiment=quoted", "data=digits", "model.kind=1"], folder / "conf")
        assert message.endswith("a text needs quotes: 'model.kind=\"1\"'.")


@pytest.mark.parametrize(("data", "key"), [
    ("text", "files"), ("jsonl", "files"), ("parquet", "val_files"), ("table", "predict"),
    ("tokens", "val_files"),
])  # fmt: skip
def test_an_address_in_place_of_files_is_the_first_message(data, key):
    first = mistakes(["model=mlp", f"data={data}", f"data.{key}=s3://bucket/a.jsonl"])[0]
    assert first.startswith(f"data.{key}='s3://bucket/a.jsonl': is an address, and files are read")
    assert "data=custom" in first
