"""A user's stream with `state_dict` and `load_state_dict`: killed, and resumed by other ranks and
workers, it reads nothing again."""

from support.runner import launch, metrics, steps, stop_at

RUN = (
    *("model=mlp", "model.num_features=2", "model.num_classes=2", "device=cpu", "data=custom"),
    *("data.dataset._target_=support.indexed.Resumable", "+data.dataset.size=70"),
    *("data.batch_size=8", "trainer.max_steps=20", "trainer.lanes=2", "hooks.evaluation=null"),
    *("hooks.checkpointing={interval:5,asynchronous:false}", "hooks.logging.interval=1"),
)
TWO = ("strategy=ddp", "dispatch.nproc=2")


def test_killed_and_resumed_it_reads_nothing_again(tmp_path):
    def attempt(name: str, *words: str) -> tuple[int, str, list[list[int]]]:
        """The exit code, the output, and what each process has read."""
        noted = tmp_path / "read" / name
        noted.mkdir(parents=True)
        outputs = tmp_path / ("straight" if name == "straight" else "other")
        # The folder is not a property of the samples.
        place = (f"+data.dataset.folder={noted}", "run.id=stream")
        done = launch(outputs, *RUN, *place, *words)
        read = [[int(line) for line in file.read_text().split()] for file in noted.iterdir()]
        return done.returncode, done.output, read

    code, output, read = attempt("straight")
    assert code == 0 and len(read) == 1 and read[0] == [n % 70 for n in range(160)], output
    code, output, _ = attempt("killed", "data.num_workers=2", *stop_at(7, signum="SIGKILL"))
    assert code == -9, output
    code, output, read = attempt("stopped", *TWO, *stop_at(12))
    assert code == 143 and "again" not in output, output
    # Two ranks agree to stop a step later.
    (*_, stopped) = steps(tmp_path / "other")
    assert stopped in (12, 13)
    assert read == [[n % 70 for n in range(5 * 8, stopped * 8)]] * 2
    code, output, read = attempt("ended", *TWO, "data.num_workers=2")
    assert code == 0 and "Reading" not in output, output
    rest = (20 - stopped) * 8
    ahead = [len(each) - rest for each in read]
    assert [each[:rest] for each in read] == [[n % 70 for n in range(stopped * 8, 160)]] * 2
    # A worker makes at most two batches of each rank ahead.
    assert all(0 <= count <= 32 for count in ahead)
    assert metrics(tmp_path / "other") == metrics(tmp_path / "straight")
