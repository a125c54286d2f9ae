"""Keys of mappings keep their type, from the YAML to the class, and in every file between."""

import json

import pytest

from launcher.config.construct import instantiate
from launcher.config.run_config import load_job, read_tree
from launcher.config.tree import flat, nest, with_text_keys, with_typed_keys
from launcher.slurm.submission import FROZEN, freeze, read_frozen
from support.composition import composed as compose
from support.composition import mistakes, run_of
from support.projects import in_project

MAPPINGS = [
    {1: "a", 2: "b"},
    {"1": "a", "2": "b"},
    {1: "a", "1": "b"},
    {0.5: "a", -2: {3: {"4": 5}}, True: "c"},
    {"a.b": 1, "a b": 2, "": 3},
    {"x": [{1: "a"}]},
]
TEXT = """
class Net:
    def __init__(self, value=None, names: dict[str, int] | None = None, ids: dict[int, str] = {}):
        self.value = value
"""


@pytest.fixture(scope="module", autouse=True)
def project(tmp_path_factory):
    files = {"keys_package.py": TEXT, "conf/model/net.yaml": "_target_: keys_package.Net\n"}
    files |= {
        f"conf/model/net{number}.yaml": json.dumps({"_target_": "keys_package.Net"})[:-1]
        + f", value: {_yaml(mapping)}}}\n"
        for number, mapping in enumerate(MAPPINGS)
    }
    with in_project(tmp_path_factory.mktemp("project"), files) as folder:
        yield folder


def _yaml(value: object) -> str:
    """A value in YAML's flow style, in which the keys `1` and `"1"` differ."""
    if isinstance(value, dict):
        items = (f"{json.dumps(key)}: {_yaml(item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    return f"[{', '.join(map(_yaml, value))}]" if isinstance(value, list) else json.dumps(value)


def composed(number: int, project):
    words = [f"model=net{number}", "data=digits", "strategy=none", "device=cpu"]
    return run_of(compose(words, project / "conf"))


@pytest.mark.parametrize("number", range(len(MAPPINGS)))
def test_a_class_gets_the_keys_of_its_yaml(number, project, tmp_path):
    run = composed(number, project)
    run.save(tmp_path / "job.yaml")
    stored = read_tree(run.stored_yaml)

    nodes = [run.plain["model"], load_job(tmp_path / "job.yaml").plain["model"], stored["model"]]
    for node in nodes:
        assert repr(instantiate(node, "model").value) == repr(MAPPINGS[number])


@pytest.mark.parametrize("number", range(len(MAPPINGS)))
def test_a_job_on_slurm_has_them_too(number, project, tmp_path):
    run = composed(number, project)
    folder = run.replace({"run.dir": str(tmp_path / "run")}).folder
    freeze(folder, run.stored, None, None)

    config, _ = read_frozen(folder)

    assert (folder.path / FROZEN).exists()
    assert repr(config["model"]) == repr(run.stored["model"])


def test_other_keys_are_another_run(project):
    ids = [composed(number, project).run.id for number in range(len(MAPPINGS))]

    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_they_are_written_as_json_and_read(mapping):
    text = json.dumps(with_text_keys(mapping), sort_keys=True)

    assert with_typed_keys(json.loads(text)) == mapping
    assert nest(flat({"node": mapping})) == {"node": mapping}


def test_their_type_is_checked(project):
    messages = mistakes(
        ["model=net", "data=digits", "+model.names={1: 2}", "+model.ids={a: b}"], project / "conf"
    )

    assert messages == [
        "model.names={1:2}: should be a mapping of keys to values or null; a key that is text needs"
        " quotes: '1'.",
        "model.ids={a:'b'}: should be a mapping of keys to values, each key a whole number;"
        " e.g. model.ids={}.",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+model={1: 2}"], "model.1=2: Net takes no 1."),
        (["+optimizer={0.5: 2}"], "optimizer.0.5=2: adamw takes no 0.5."),
        (["+strategy={true: 2}"], "strategy.True=2: NoStrategy takes no True."),
        (["+trainer={1: 2}"], "trainer.1=2: trainer takes no 1."),
        (["+run={1: 2}"], "run.1=2: run takes no 1."),
        (["+data={1: 2}"], "data.1=2: DigitsData takes no 1."),
        (["+hooks={1: 2}"], "hooks.1=2: should be a part with a _target_, or null."),
    ],
)
def test_a_key_of_another_type_that_no_part_takes_is_one_sentence(words, message, project):
    command = ["model=net", "data=digits", "strategy=none", *words]
    assert mistakes(command, project / "conf") == [message]
