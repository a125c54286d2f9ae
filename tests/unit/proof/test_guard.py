"""The command guard: its options, `guard.yaml`, and its exit code."""

import pytest

from launcher.errors import ConfigError
from launcher.proof.guard import main
from launcher.proof.guard_file import EqualPresets, read_file
from support.git import commit, git


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a=1", "--steps", "0"], "argument --steps: 0 is less than 1"),
        (["a=1", "--parallel=-1"], "argument --parallel: -1 is less than 1"),
        (["a=1", "--write", "--locked"], "argument --locked: not allowed with argument --write"),
        (["a=1", "--against", "x", "--bisect", "y"], "--bisect: not allowed with argument --ag"),
        (["--other"], "unrecognized arguments: --other"),
        ([], "there is no guard.yaml here; name a preset"),
        (["a=1"], "the current folder is not in a git repository"),
    ],
)
def test_a_bad_command_is_one_message(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    printed = capsys.readouterr()
    assert message in printed.err and "Traceback" not in printed.err and not printed.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("presets: [", "cannot be read as YAML"),
        ("steps: 3", "presets: should be a mapping"),
        ("presets: 3", "presets: should be a mapping"),
        ("presets: {a: model=mlp}", "presets.a: should be a list of overrides"),
        ("presets: {a: [1]}", "presets.a: should be a list of overrides"),
        ("preset: {a: []}\npresets: {a: []}", "no key preset"),
        ("steps: many\npresets: {a: []}", "steps='many' should be a number of steps"),
        ("steps: true\npresets: {a: []}", "steps=True should be a number of steps"),
        ("presets: {a: [], b: []}\nequal: [[a, c]]", "equal: no preset c"),
        ("presets: {a: [], b: []}\nequal: [[a]]", "equal: should have lists of presets"),
        ("presets: {a: [], b: []}\nequal: a", "equal: should have lists of presets"),
        ("presets: {a: [], b: []}\nequal: [{presets: [a, b], close: x}]", "equal: should have"),
        ("presets: {a: [], b: []}\nequal: [{presets: [a, b], near: 1.0}]", "equal: should have"),
    ],
)
def test_a_bad_file_is_one_message(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "guard.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_file(None)
    assert message in str(error.value) and str(error.value).startswith("guard.yaml: ")


def test_presets_and_those_that_must_agree_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "guard.yaml").write_text(
        "steps: 5\n"
        "presets: {a: [model=mlp, seed=1], b: []}\n"
        "equal: [[a, b], {presets: [b, a], close: 1e-6}]\n"
    )
    presets, equal = read_file(None)
    assert [(preset.name, preset.overrides, preset.steps) for preset in presets] == [
        ("a", ("model=mlp", "seed=1"), 5),
        ("b", (), 5),
    ]
    assert equal == [EqualPresets(("a", "b")), EqualPresets(("b", "a"), 1e-6)]
    assert read_file(7)[0][0].steps == 7


def test_presets_train_on_the_cpu_unless_they_choose_a_device(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "guard.yaml").write_text("presets: {a: [seed=1], b: [device=cuda]}\n")
    typed = [preset.typed() for preset in read_file(None)[0]]
    assert typed == [["seed=1", "device=cpu"], ["device=cuda"]]


def test_equal_trees_are_not_trained(tmp_path, monkeypatch, capsys):
    (tmp_path / "file.py").write_text("")
    commit(tmp_path)
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "nothing")
    monkeypatch.chdir(tmp_path)
    assert main(["model=mlp"]) == 0
    assert capsys.readouterr().out.startswith("Nothing to compare: the tracked files equal ")
    assert main(["model=mlp", "--against", "v9"]) == 2
    assert "--against=v9: there is no such commit" in capsys.readouterr().err
    for names in (("HEAD", "HEAD~1"), ("HEAD~1", "HEAD", "HEAD")):
        assert main(["model=mlp", "--bisect", *names]) == 2
        text = "takes a good commit, and perhaps a later bad one; overrides come before it."
        assert f"--bisect {' '.join(names)}: {text}" in capsys.readouterr().err
