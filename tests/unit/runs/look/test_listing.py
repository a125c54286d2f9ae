import json
import time

import pytest

from launcher.rundir.folder import RunFolder
from launcher.runs.find_runs import find_runs
from launcher.runs.look.listing import table
from launcher.slurm.submission import Submission, freeze

GPT = {"model": "gpt", "data": "text", "hooks": ["default"], "hydra/launcher": "basic"}
MLP = {**GPT, "model": "mlp"}


def config(lr=0.001, seed=0, steps=10, **model):
    return {
        "seed": seed,
        "run": {"id": "x", "tag": None, "dir": f"/somewhere/{seed}"},
        "optimizer": {"lr": lr, "betas": [0.9, 0.95]},
        "model": model,
        "scheduler": {"max_steps": steps},
        "trainer": {"max_steps": steps},
    }


@pytest.fixture
def sweep(make_run):
    gpt = {"_target_": "launcher.models.gpt.GPT", "dim": 64, "layers": 2}
    mlp = config(lr=1e-05, _target_="launcher.models.mlp.MLP", width=32)
    best = {"metric": "val/loss", "value": 0.25, "step": 4}
    other = config(seed=1, **{**gpt, "dim": 128})
    make_run("gpt", "aaaa0001", config=config(**gpt), choices=GPT, loss=2.345678)
    make_run("gpt", "aaaa0002", config=other, choices=GPT, state="stale", step=7)
    make_run("mlp", "bbbb0003", config=mlp, choices=MLP, state="running", step=4, best=best)
    make_run("mlp", "bbbb0004", config=mlp, choices=MLP, state="preempted", loss=float("nan"))


def rows(output):
    """Cells of a table: columns are two spaces or more apart."""
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in output.splitlines()
    ]


@pytest.fixture
def differs(runs):
    """Gives each run's differences in `--json`."""
    return lambda: [run["differs"] for run in json.loads(runs("--json")[1])]


def test_the_table(runs, sweep):
    code, output, _ = runs()
    heading, *lines = rows(output)
    assert code == 0
    assert heading == [
        *("name", "id", "differs in", "state", "step/max", "train/loss", "curve"),
        *("best val/loss", "attempts", "age"),
    ]
    lr = "optimizer.lr=1e-05 seed=0"
    assert [line[:8] for line in lines] == [
        ["gpt", "aaaa0001", "model=gpt model.dim=64 optimizer.lr=0.001 seed=0",
         "completed", "10/10", "2.346", "-", "1"],
        ["gpt", "aaaa0002", "model=gpt model.dim=128 optimizer.lr=0.001 seed=1",
         "stale", "7/10", "-", "-", "1"],
        ["mlp", "bbbb0003", f"model=mlp {lr}", "running", "4/10", "-", "0.25", "1"],
        ["mlp", "bbbb0004", f"model=mlp {lr}", "preempted", "10/10", "nan", "-", "1"],
    ]  # fmt: skip


@pytest.mark.parametrize("width", [30, 50, 80, 100, 120])
def test_a_run_is_one_line_at_any_width(sweep, outputs, width):
    runs = find_runs(outputs)
    lines = list(table(runs, time.time(), width).lines(width))
    chosen = list(table(runs, time.time(), width, ["train/loss", "step", "best"]).lines(width))
    for each in (lines, chosen):
        assert len(each) == 1 + len(runs) and all(len(line) <= width for line in each)
        assert runs[0].id in each[1]
    assert ("train/loss" in chosen[0]) == (width >= 50)
    assert "state" in lines[0] and ("best val/loss" in lines[0]) == (width >= 80)
    assert ("model=gpt dim=128 lr=0.001" in lines[2]) == (width >= 50)


@pytest.mark.parametrize(("max_steps", "shown"), [(30, "0/30"), (None, "0/?")])
def test_a_queued_run_has_the_steps_of_its_configuration(runs, outputs, max_steps, shown):
    folder = RunFolder(outputs / "gpt" / "1a2b0000")
    plain = {"run": {"dir": str(folder.path)}, "trainer": {"max_steps": max_steps}}
    freeze(folder, plain, None, Submission("/s/job-0.sh"))
    assert f"  {shown}  " in runs()[1] and f"step       {shown}\n" in runs("show", "1a2b")[1]


def test_a_key_that_only_follows_a_preset_or_a_group_is_left_out(make_run, differs):
    preset = {**GPT, "experiment": "small", "data": "digits", "scheduler": "constant"}
    plain = {**GPT, "experiment": None, "scheduler": "cosine"}
    for index, choices in enumerate((plain, plain, preset, preset)):
        is_small, lr = choices is preset, 0.1 if index % 2 else 0.2
        overrides = ["experiment=small"] * is_small + ["optimizer.lr=0.1"] * (index % 2)
        own = {"data": {"classes": 10 - is_small}, "trainer": {"max_steps": 5 + is_small}}
        full = config(lr=lr, classes=10 - is_small) | own
        make_run("gpt", f"aaaa000{index}", config=full, choices=choices, overrides=overrides)
    assert differs() == [
        {"experiment": experiment, "optimizer.lr": lr}
        for experiment in ("null", "small")
        for lr in ("0.2", "0.1")
    ]


def test_columns_and_order(runs, sweep):
    code, output, _ = runs("--columns", "seed,model.dim", "--sort", "seed", "--reverse")
    heading, *lines = rows(output)
    assert code == 0 and heading == ["name", "id", "differs in", "state", "seed", "model.dim"]
    assert lines[0][1] == "aaaa0002" and lines[0][4:] == ["1", "128"]
    code, _, error = runs("--columns", "sed")
    assert code == 2 and error.startswith("'--columns=sed': ")


def test_the_curve_is_shown_and_a_metric_sorts_the_runs(runs, make_run):
    for number, loss in enumerate((0.5, 0.25)):
        logged = [{"step": n, "train/loss": y} for n, y in enumerate([4.0, 3.0, 2.0, 1.5, 1.0])]
        make_run("gpt", f"aaaa000{number}", loss=1.0, rows=[*logged, {"step": 9, "val/loss": loss}])
    _, *lines = rows(runs("--sort", "val/loss")[1])
    assert [line[1] for line in lines] == ["aaaa0001", "aaaa0000"]
    assert all("█▆▃▂▁" in line for line in lines)


def test_keys_of_many_kinds_of_runs(make_run, differs, runs):
    typed = ("optimizer.lr=0.1", "optimizer.lr=0.2", "+run.tag=again", "seed=1")
    typed += ("trainer.max_steps=5",)
    for number, override in enumerate(typed):
        lr, steps = {0: 0.1, 1: 0.2}.get(number, 0.001), 5 if number == 4 else 10
        settings = config(lr=lr, seed=int(number == 3), steps=steps)
        settings["model"] = {"_target_": "p.B" if number == 1 else "p.A"}
        settings["run"]["tag"] = "again" if number == 2 else None
        if number == 1:
            del settings["scheduler"]  # it follows trainer.max_steps where it exists
        make_run("m", f"aaaa000{number}", config=settings, choices=MLP, overrides=[override])
    keys = ["model", "optimizer.lr", "run.tag", "seed", "trainer.max_steps"]
    assert list(differs()[0]) == keys, "the class, then the key with the most values"
    assert "run.tag=again" in runs()[1] and "null" not in runs()[1]


@pytest.mark.parametrize("width", [None, 120, 60])
def test_failed_runs_have_a_reason(make_run, outputs, change, width):
    make_run("m", "aaaa0001", config=config(seed=0), loss=1.5)
    for number in (2, 3):
        folder = make_run("m", f"aaaa000{number}", config=config(seed=number), state="failed")
        (attempt,) = json.loads(folder.record_path.read_text())["attempts"]
        reason = f"RuntimeError: number {number}\n" + "x" * 100
        change(folder, attempts=[attempt | {"reason": reason}])
    runs = find_runs(outputs)
    heading, completed, *failed = table(runs, time.time(), width).lines(width)
    is_shown = width != 60
    assert (heading.split()[-1] == "reason") == is_shown
    assert not is_shown or completed.endswith("  -")
    for number, line in zip((2, 3), failed, strict=True):
        assert "seed=" in line and (f"RuntimeError: number {number}" in line) == is_shown
    assert "reason" not in next(table(runs[:1], time.time(), width).lines(width))


def test_listing_hides_settings_that_cannot_change_the_numbers(make_run, differs):
    excluded = ["hooks.logging", "device", "run", "job"]
    for number in (1, 2):
        settings = config() | {"device": f"cuda:{number}"}
        tag = "again" if number == 2 else None
        settings["run"] |= {"tag": tag, "identity_exclude": excluded}
        settings["hooks"] = {"logging": {"interval": number}, "ema": {"decay": number}}
        make_run("gpt", f"aaaa000{number}", config=settings, choices={**GPT, "job": str(number)})
    tags = {"1": "null", "2": "again"}
    assert differs() == [{"hooks.ema.decay": n, "run.tag": tag} for n, tag in tags.items()]


def test_damaged_runs_are_listed_too(runs, make_run, change):
    make_run("gpt", "aaaa0001").record_path.write_text("{")
    change(make_run("gpt", "aaaa0002"), config={})
    code, output, _ = runs()
    states = {line[1]: line[2] for line in rows(output)[1:]}
    assert code == 0 and states == {"aaaa0001": "damaged", "aaaa0002": "completed"}
    assert runs("show", "aaaa0001")[0] == 0 == runs("report", "aaaa0001")[0]


def test_nested_classes_are_listed_by_their_last_parts(make_run, differs, runs):
    for number, target in enumerate(("lab.one.collate", "lab.two.collate", "lab.two.other")):
        settings = config(width=4)
        settings["data"] = {
            "collate_fn": {"_target_": target, "_partial_": number > 0, "n": number}
        }
        make_run("m", f"aaaa000{number}", config=settings, choices=MLP)
    key = "data.collate_fn"
    assert [row[key] for row in differs()] == ["one.collate", "two.collate", "two.other"]
    assert [[*row] for row in differs()] == [[key, f"{key}.n"]] * 3
    assert "_partial_" not in runs()[1] and "_target_" not in runs()[1]


def test_the_configuration_is_in_the_json_of_a_list(make_run, runs):
    make_run("m", "aaaa0000", config=config(lr=0.5), choices=MLP)
    (listed,) = json.loads(runs("list", "--json")[1])
    assert listed["config"]["optimizer.lr"] == 0.5
    (shown,) = json.loads(runs("show", "aaaa0000", "--json")[1])
    assert shown.pop("checkpoints") == []
    assert shown == listed | {"differs": {}}


def test_users_are_a_column_and_a_filter_where_they_differ(make_run, change, runs):
    def of(id: str, *users: str | None) -> None:
        folder = make_run("gpt", id)
        attempt = json.loads(folder.record_path.read_text())["attempts"][0]
        change(folder, attempts=[{**attempt, "number": n, "user": u} for n, u in enumerate(users)])

    of("aa", "alice", "alice")
    of("old", None)
    assert " user " not in runs("list")[1]
    of("bb", "alice", "bob")
    _, out, _ = runs("list")
    assert " user " in out and "alice bob" in out
    assert [run["users"] for run in json.loads(runs("list", "--json", "user=bob")[1])] == [
        ["alice", "bob"]
    ]
    assert len(json.loads(runs("list", "--json", "user=alice")[1])) == 2
    assert " user " in runs("show", "bb")[1] and "alice" in runs("show", "aa")[1]
