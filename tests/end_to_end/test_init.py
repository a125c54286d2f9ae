"""A new project trains at once, and passes its own tests."""

import pytest
import yaml
from benchmarks.guard_cases import replace

from support import python
from support.git import commit, git
from support.paths import ROOT


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("projects")
    python.run("-m", "launcher", "init", "my_project", cwd=folder, check=True)
    return folder / "my_project"


def test_a_new_project_passes_its_own_tests(project):
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    tests = python.run(*words, cwd=project, env=python.forking(), check=True)
    assert "2 passed" in tests.stdout


@pytest.mark.parametrize(
    "words", [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy", "--strict", ".")]
)
def test_a_new_project_passes_linters(project, words):
    """With their defaults, and the package's name sorted as anybody's. A cache of mypy keeps what
    it knows of torch and of the library, as a user's does."""
    cache = str(ROOT / ".pytest_cache" / "mypy")
    environment = {**python.forking(), "MYPY_CACHE_DIR": cache, "RUFF_NO_CACHE": "true"}
    done = python.run("-m", *words, cwd=project, env=environment, real=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def test_a_new_project_has_a_workflow_that_runs_what_its_readme_names(project):
    file = project / ".github" / "workflows" / "tests.yml"
    steps = [step.get("run") for step in yaml.safe_load(file.read_text())["jobs"]["tests"]["steps"]]
    for command in ("ruff check .", "ruff format --check .", "mypy", "pytest"):
        assert command in steps and command in (project / "README.md").read_text()


def test_edited_code_is_named_when_a_run_resumes_and_when_it_is_complete(project):
    words = ["experiment=first", "device=cpu", "trainer.max_steps=4", "scheduler=constant"]

    def output(*more: str) -> str:
        done = python.run("-m", "launcher", *words, *more, cwd=project, check=True)
        return str(done.stdout + done.stderr)

    def edit(name: str) -> None:
        with open(project / "my_project" / name, "a") as file:
            file.write("\n# edited\n")

    assert "Changed" not in output("trainer.pause_at=2")
    edit("model.py")
    assert "Changed since the checkpoint: my_project/model.py: was edited." in output()
    edit("data.py")
    assert "Changed since it was trained: my_project/data.py: was edited." in output()


def test_a_new_project_is_guarded(project):
    git(project, "init", "-q", "-b", "main")
    commit(project)
    replace(project / "my_project/data.py", "self.noise * ", "2 * self.noise * ")
    replace(project / "guard.yaml", "steps: 20", "steps: 1")
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "guard")
    children = (("launcher.guard", 1), ("guard_job.py", 4))
    tests = python.start(*words, cwd=project, children=children)
    out, _ = tests.communicate(timeout=400)
    assert tests.returncode == 1 and "first: differs from step 1: samples" in out, out
    assert "fetch-depth: 0" in (project / ".github/workflows/tests.yml").read_text()
