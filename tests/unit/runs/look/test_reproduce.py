"""`runs reproduce`: what it prints for each thing that may be missing;
tests/end_to_end/test_reproduce.py runs the commands."""

import pytest

from launcher.rundir.record_format import read_record
from launcher.rundir.reproduction import CODE, ENVIRONMENT
from support import git


@pytest.fixture
def commit(tmp_path, monkeypatch):
    """The commit of a repository, which is the current folder."""
    (root := tmp_path / "my project").mkdir()
    monkeypatch.chdir(root)
    (root / "a.py").write_text("a = 1\n")
    git.commit(root)
    return git.git(root, "rev-parse", "HEAD").decode().strip()


def test_the_commands_have_absolute_quoted_paths(make_run, runs, tmp_path, commit):
    folder = make_run("mlp", "abcd1234").path
    (folder / CODE).write_text(
        f"# commit: {commit}\n# left out: .env (looks like a secret)\ndiff --git a/a.py b/a.py\n"
    )
    (folder / ENVIRONMENT).write_text(
        "# CPython 3.11.7, Linux\ntorch==2.13.0+cu128\nmine==1.0  # not from an index\n"
    )
    code, output, errors = runs("reproduce", "abcd1234", "--into", "new one")
    project = tmp_path / "my project"
    pins = "'^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+]+$'"
    assert (code, errors) == (1, "") and output.splitlines() == [
        "# mlp/abcd1234",
        f"git -C '{project}' worktree add --detach '{project}/new one' {commit}",
        f"git -C '{project}/new one' apply --whitespace=nowarn {folder}/code.diff",
        "# Missing in code.diff: .env (looks like a secret).",
        f"uv venv --python 3.11.7 '{project}/new one/.venv' && grep -E {pins}"
        f" {folder}/environment.txt | uv pip sync --python '{project}/new one/.venv'"
        " --torch-backend=cu128 -",
        "# Not from an index, so not installed: mine==1.0.",
    ]


def test_steps_that_other_code_trained_are_named(make_run, runs, commit, change):
    folder = make_run("mlp", "abcd1234")
    (folder.path / CODE).write_text(f"# commit: {commit}\n")
    (folder.path / ENVIRONMENT).write_text("numpy==2.1.0\n")
    (attempt,) = read_record(folder.record_path)["attempts"]
    for changes, told in ([], []), (["git.commit: a -> b"], []), (["a.py: was edited."], [4]):
        second = attempt | {"start_step": 4, "end_step": 8, "trained": {"changes": changes}}
        change(folder, attempts=[attempt, second])
        code, output, _ = runs("reproduce", "abcd1234")
        named = [f"# Missing: what trained the steps after {step} ({changes[0]})" for step in told]
        assert [line for line in output.splitlines() if "Missing" in line] == named
        assert code == len(told)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "# Missing: the code."),
        ("# commit: --help\n", "# Missing: the code."),
        (f"# commit: {'0' * 40}\n", f"# Missing: commit {'0' * 40}, which no git"),
        ("# commit: {commit}\n", "# No changes to apply: "),
    ],
)
def test_what_is_missing_is_named(make_run, runs, commit, text, expected):
    folder = make_run("mlp", "abcd1234").path
    (folder / CODE).write_text(text.replace("{commit}", commit))
    code, output, _ = runs("reproduce", "abcd1234")
    assert code == 1 and expected in output and "# Missing: environment.txt" in output
    (folder / ENVIRONMENT).write_text("numpy==2.1.0\n")
    assert runs("reproduce", "abcd1234")[0] == int("Missing" in expected)


def test_without_git_the_commit_is_missing(make_run, runs, commit, monkeypatch):
    (make_run("mlp", "abcd1234").path / CODE).write_text(f"# commit: {commit}\n")
    monkeypatch.setenv("PATH", "")
    code, output, _ = runs("reproduce", "abcd1234")
    assert code == 1 and f"# Missing: commit {commit}, which no git" in output
