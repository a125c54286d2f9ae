"""A compiled run starts with what an earlier process has compiled, on another node too."""

from pathlib import Path

from support.runner import ENVIRONMENT, final_state, metrics, start

COMMAND = (
    *("model=products", "data=digits", "data.batch_size=4", "optimizer=sgd", "scheduler=constant"),
    *("hooks=[checkpointing,logging]", "trainer.compile=true", "trainer.max_steps=3"),
)


def trained(place: Path, **variables: str) -> None:
    """Train on a node whose temporary folder is empty."""
    (options := place / "conf" / "model").mkdir(parents=True)
    (options / "products.yaml").write_text("_target_: support.modules.Products")
    (temporary := place / "tmp").mkdir()
    where = ("--config-dir", str(place / "conf"), f"paths.outputs={place / 'outputs'}")
    command = ("-m", "launcher", *where, *COMMAND)
    env = {key: value for key, value in ENVIRONMENT.items() if key != "TORCHINDUCTOR_CACHE_DIR"}
    process = start(*command, env={**env, "TMPDIR": str(temporary), **variables}, real=True)
    output = process.communicate()[0]
    assert process.returncode == 0, output


def compiled(folder: Path) -> dict[str, int]:
    """The stored graphs and kernels, with the numbers of their files."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.stat().st_ino for path in files}


def test_the_second_process_compiles_nothing(tmp_path: Path) -> None:
    cache, first, second = tmp_path / "cache", tmp_path / "1", tmp_path / "2"
    trained(first, XDG_CACHE_HOME=str(cache))
    (folder,) = (cache / "launcher" / "inductor").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    before = compiled(folder)
    assert any(name.endswith(".so") for name in before), before
    trained(second, XDG_CACHE_HOME=str(cache))
    # A graph or a kernel that was not found would have been compiled and stored.
    assert compiled(folder) == before
    assert final_state(first / "outputs") == final_state(second / "outputs")
    assert metrics(first / "outputs") == metrics(second / "outputs")


def test_without_a_home_the_folder_is_torchs(tmp_path: Path) -> None:
    (blocked := tmp_path / "file").write_text("")
    trained(tmp_path / "1", XDG_CACHE_HOME=str(blocked / "cache"))
    assert any(name.endswith(".so") for name in compiled(tmp_path / "1" / "tmp"))
