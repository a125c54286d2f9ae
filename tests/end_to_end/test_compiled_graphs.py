"""A compiled run starts with the graphs that an earlier process has compiled."""

from pathlib import Path

from support.runner import ENVIRONMENT, final_state, metrics, start

COMMAND = (
    *("model=products", "data=digits", "data.batch_size=4", "optimizer=sgd", "scheduler=constant"),
    *("hooks=[checkpointing,logging]", "trainer.compile=true", "trainer.max_steps=3"),
)


def trained(cache: Path, place: Path) -> str:
    """The output of a run whose own inductor has compiled nothing yet."""
    kept = {
        "XDG_CACHE_HOME": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
    }
    (options := place / "conf" / "model").mkdir(parents=True)
    (options / "products.yaml").write_text("_target_: support.modules.Products")
    command = (
        "-m",
        "launcher",
        "--config-dir",
        str(place / "conf"),
        f"paths.outputs={place / 'outputs'}",
        *COMMAND,
    )
    process = start(*command, env={**ENVIRONMENT, **kept})
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return output


def test_the_second_process_compiles_nothing(tmp_path: Path) -> None:
    cache, first, second = tmp_path / "cache", tmp_path / "1", tmp_path / "2"
    assert "Compiled graphs: none of an earlier start" in trained(cache, first)
    (file,) = (cache / "launcher" / "compiled").iterdir()
    assert file.stat().st_mode & 0o077 == 0 and file.parent.stat().st_mode & 0o077 == 0
    before = file.stat().st_ino
    assert "Compiled graphs: 2 of an earlier start" in trained(cache, second)
    # A graph that was not found would have been compiled and stored.
    assert file.stat().st_ino == before
    assert final_state(first / "outputs") == final_state(second / "outputs")
    assert metrics(first / "outputs") == metrics(second / "outputs")
