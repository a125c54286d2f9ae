"""The base of a change, and a bisection over commits."""

import pytest

from launcher.errors import ConfigError
from launcher.proof import commits
from support.git import git


def write_commits(folder, *subjects):
    """A commit for each subject on `main`; return their hashes."""
    git(folder, "init", "-q", "-b", "main")
    for subject in subjects:
        (folder / "file.py").write_text(f"# {subject}\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", subject)
    listed = git(folder, "log", "--reverse", "--format=%H").decode().split()
    return listed


def test_the_base_on_the_default_branch_is_head_if_files_have_changed_else_its_parent(
    tmp_path,
):
    first, second = write_commits(tmp_path, "one", "two")
    assert commits.base_of_change(tmp_path) == first
    (tmp_path / "new.py").write_text("")
    assert commits.base_of_change(tmp_path) == first
    (tmp_path / "file.py").write_text("# edited\n")
    assert commits.base_of_change(tmp_path) == second
    assert not commits.is_equal_tree(tmp_path, second)


def test_the_base_on_a_branch_is_the_last_commit_in_common_with_the_default_branch(tmp_path):
    first, _ = write_commits(tmp_path, "one", "two")
    git(tmp_path, "checkout", "-q", "-b", "mine", first)
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "three")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "four")
    assert commits.base_of_change(tmp_path) == first
    assert commits.is_equal_tree(tmp_path, first)


def test_the_default_branch_is_that_of_origin(tmp_path):
    write_commits(tmp_path, "one", "two")
    assert commits.default_branch(tmp_path) == "main"
    git(tmp_path, "update-ref", "refs/remotes/origin/trunk", "HEAD")
    git(tmp_path, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk")
    assert commits.default_branch(tmp_path) == "refs/remotes/origin/trunk"


@pytest.mark.parametrize("subjects", [(), ("one",)])
def test_a_repository_without_another_commit_is_a_message(tmp_path, subjects):
    write_commits(tmp_path, *subjects) if subjects else git(tmp_path, "init", "-q")
    with pytest.raises(ConfigError, match="there is no earlier commit to compare with"):
        commits.base_of_change(tmp_path)


@pytest.mark.parametrize("branch", ["main", "mine"])
def test_a_clone_without_history_is_told_what_to_add(tmp_path, branch):
    (tmp_path / "origin").mkdir()
    write_commits(tmp_path / "origin", "one", "two")
    git(tmp_path / "origin", "checkout", "-q", "-b", "mine")
    git(tmp_path / "origin", "commit", "-q", "--allow-empty", "-m", "three")
    url = (tmp_path / "origin").as_uri()
    git(tmp_path, "clone", "-q", "--depth", "1", "--branch", branch, url, "clone")
    with pytest.raises(ConfigError, match="fetch-depth: 0"):
        commits.base_of_change(tmp_path / "clone")


def test_an_unknown_commit_is_a_message(tmp_path):
    write_commits(tmp_path, "one")
    with pytest.raises(ConfigError, match="--against=v9: there is no such commit here"):
        commits.resolve(tmp_path, "v9", "--against")


@pytest.mark.parametrize("place", range(1, 8))
@pytest.mark.parametrize("untrained", [(), (3,), (2, 5)])
def test_a_bisection_finds_the_first_bad_commit_or_what_hides_it(tmp_path, place, untrained):
    history = write_commits(tmp_path, *map(str, range(8)))
    numbers = {commit: number for number, commit in enumerate(history)}
    asked = []

    def is_good(commit):
        asked.append(numbers[commit])
        return None if numbers[commit] in untrained else numbers[commit] < place

    first, hidden = commits.bisect(tmp_path, history[0], history[7], is_good)
    if place in untrained or place - 1 in untrained:
        assert first is None and {numbers[commit] for commit in hidden} <= set(untrained)
    else:
        assert first is not None and numbers[first] == place and len(asked) <= 3 + len(untrained)
