"""A new project trains at once, and passes its own tests."""

from support import python


def test_a_new_project_passes_its_own_tests(tmp_path):
    made = python.run("-m", "launcher", "init", "my_project", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    tests = python.run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path / "my_project")
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert "2 passed" in tests.stdout


def test_edited_code_is_named_when_a_run_resumes_and_when_it_is_complete(tmp_path):
    assert python.run("-m", "launcher", "init", "my_project", cwd=tmp_path).returncode == 0
    project = tmp_path / "my_project"
    words = ["experiment=first", "device=cpu", "trainer.max_steps=4", "scheduler=constant"]

    def output(*more: str) -> str:
        done = python.run("-m", "launcher", *words, *more, cwd=project)
        assert done.returncode == 0, done.stderr
        return str(done.stdout + done.stderr)

    def edit(name: str) -> None:
        with open(project / "my_project" / name, "a") as file:
            file.write("\n# edited\n")

    assert "Changed" not in output("trainer.pause_at=2")
    edit("model.py")
    assert "Changed since the checkpoint: my_project/model.py: was edited." in output()
    edit("data.py")
    assert "Changed since it was trained: my_project/data.py: was edited." in output()
