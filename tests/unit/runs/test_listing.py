import json
import time

import pytest

from launcher.runs.find import find_runs
from launcher.runs.listing import table

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
    mlp = {"_target_": "launcher.models.mlp.MLP", "width": 32}
    make_run("gpt", "aaaa0001", config=config(**gpt), choices=GPT, loss=2.345678)
    make_run(
        "gpt",
        "aaaa0002",
        config=config(seed=1, **{**gpt, "dim": 128}),
        choices=GPT,
        state="stale",
        step=7,
    )
    best = {"metric": "val/loss", "value": 0.25, "step": 4}
    make_run(
        "mlp",
        "bbbb0003",
        config=config(lr=1e-05, **mlp),
        choices=MLP,
        state="running",
        step=4,
        best=best,
    )
    make_run(
        "mlp",
        "bbbb0004",
        config=config(lr=1e-05, **mlp),
        choices=MLP,
        state="preempted",
        loss=float("nan"),
    )


def rows(output):
    """Cells of a table: columns are two spaces or more apart."""
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in output.splitlines()
    ]


def test_the_table(runs, sweep):
    code, output, _ = runs()
    heading, *lines = rows(output)
    assert code == 0
    headings = [
        "name",
        "id",
        "differs in",
        "state",
        "step/max",
        "train/loss",
        "curve",
        "best val/loss",
    ]
    assert heading == [*headings, "attempts", "age"]
    assert [line[:4] for line in lines] == [
        ["gpt", "aaaa0001", "model=gpt model.dim=64 optimizer.lr=0.001 seed=0", "completed"],
        ["gpt", "aaaa0002", "model=gpt model.dim=128 optimizer.lr=0.001 seed=1", "stale"],
        ["mlp", "bbbb0003", "model=mlp optimizer.lr=1e-05 seed=0", "running"],
        ["mlp", "bbbb0004", "model=mlp optimizer.lr=1e-05 seed=0", "preempted"],
    ]
    assert [line[4:8] for line in lines] == [
        ["10/10", "2.346", "-", "1"],
        ["7/10", "-", "-", "1"],
        ["4/10", "-", "0.25", "1"],
        ["10/10", "nan", "-", "1"],
    ]


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["optimizer.lr=1e-5"], ["bbbb0003", "bbbb0004"]),
        (["optimizer.lr=1e-3", "seed=1"], ["aaaa0002"]),
        (["model=gpt"], ["aaaa0001", "aaaa0002"]),
        (["optimizer.betas=[0.9,0.95]", "model.dim=64"], ["aaaa0001"]),
        (["state=stale"], ["aaaa0002"]),
        (["list", "ml"], ["bbbb0003", "bbbb0004"]),
        (["list", "aaaa", "seed=0"], ["aaaa0001"]),
        (["run.tag=null", "state=running"], ["bbbb0003"]),
        (["seed=5"], []),
    ],
)
def test_filters(runs, sweep, words, ids):
    code, output, error = runs(*words)
    assert code == 0 and [line[1] for line in rows(output)[1:]] == ids
    assert ids or "There are no runs in" in error


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 200])
def test_a_run_is_one_line_at_any_width(sweep, outputs, width):
    runs = find_runs(outputs)
    lines = list(table(runs, time.time(), width).lines(width))
    assert len(lines) == 1 + len(runs) and all(len(line) <= width for line in lines)
    assert ("model=gpt seed=1 " in lines[2]) == (40 <= width < 120), "the keys that tell"
    assert ("differs in" in lines[0]) == (width >= 40)
    assert ("best val/loss" in lines[0]) == (width >= 60) and ("name" in lines[0]) == (width > 40)
    if width == 200:
        assert "model=gpt model.dim=128 optimizer.lr=0.001 seed=1" in lines[2]


def test_a_key_that_only_follows_a_preset_or_a_group_is_left_out(make_run, runs):
    preset = {**GPT, "experiment": "small", "data": "digits", "scheduler": "constant"}
    plain = {**GPT, "experiment": None, "scheduler": "cosine"}
    for index, (choices, overrides) in enumerate(
        [
            (plain, []),
            (plain, ["optimizer.lr=0.1"]),
            (preset, ["experiment=small"]),
            (preset, ["experiment=small", "optimizer.lr=0.1"]),
        ]
    ):
        is_small, lr = choices is preset, 0.1 if "optimizer.lr=0.1" in overrides else 0.2
        own = {"data": {"classes": 10 - is_small}, "trainer": {"max_steps": 5 + is_small}}
        full = config(lr=lr, classes=10 - is_small) | own
        make_run("gpt", f"aaaa000{index}", config=full, choices=choices, overrides=overrides)
    _, output, _ = runs("--json")
    small = {"experiment": "small"}
    assert [run["differs"] for run in json.loads(output)] == [
        {"experiment": "null", "optimizer.lr": "0.2"},
        {"experiment": "null", "optimizer.lr": "0.1"},
        small | {"optimizer.lr": "0.2"},
        small | {"optimizer.lr": "0.1"},
    ]


def test_a_key_that_takes_its_value_from_another_group_is_left_out(make_run, runs):
    for data, classes in (("text", 256), ("digits", 10)):
        full = config(classes=classes) | {"data": {"classes": classes}}
        make_run("gpt", data, config=full, choices={**GPT, "data": data})
    _, output, _ = runs("--json")
    differing = [run["differs"] for run in json.loads(output)]
    assert differing == [{"data": "text"}, {"data": "digits"}]


def test_columns_and_order(runs, sweep):
    code, output, _ = runs("--columns", "seed,model.dim", "--sort", "seed", "--reverse")
    heading, *lines = rows(output)
    assert code == 0 and heading == ["name", "id", "differs in", "state", "seed", "model.dim"]
    assert lines[0][1] == "aaaa0002" and lines[0][4:] == ["1", "128"]
    assert runs("--columns", "sed") == (
        2,
        "",
        "'--columns=sed': no run has this key; did you mean seed?\n",
    )


def write_metrics(folder, rows):
    folder.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_loss_of_a_run_is_drawn_small(runs, make_run):
    losses = [4.0, 3.0, 2.0, 1.5, 1.0]
    write_metrics(
        make_run("gpt", "aaaa0001"),
        [{"step": n, "train/loss": loss} for n, loss in enumerate(losses)],
    )
    assert "█▆▃▂▁" in runs()[1]


def test_the_metric_by_which_runs_are_sorted_is_shown(runs, make_run):
    for number, loss in enumerate((0.5, 0.25)):
        write_metrics(
            make_run("gpt", f"aaaa000{number}", loss=1.0), [{"step": 1, "val/loss": loss}]
        )
    heading, *lines = rows(runs("--sort", "val/loss")[1])
    assert heading[-1] == "val/loss" and [line[-1] for line in lines] == ["0.25", "0.5"]
    assert "val/loss" not in runs("--sort", "state")[1]


def test_listing_names_the_metric_of_each_best_where_they_differ(runs, make_run):
    for number, metric in enumerate(("val/loss", "val/accuracy")):
        make_run("a", f"aaaa000{number}", best={"metric": metric, "value": 0.5, "step": 1})
    _, first, second = rows(runs()[1])
    assert "0.5 (val/loss)" in first and "0.5 (val/accuracy)" in second


def test_listing_of_one_run_shows_no_differences(runs, make_run):
    make_run("gpt", "aaaa0001", config=config(), choices=GPT)
    assert "differs" not in runs()[1]


def test_a_value_that_follows_another_is_shown_once(runs, make_run):
    for number, steps in enumerate((10, 20)):
        given = [f"trainer.max_steps={steps}", "+seed=0"]
        make_run(
            "gpt", f"aaaa000{number}", config=config(steps=steps), choices=GPT, overrides=given
        )
    assert [line[2] for line in rows(runs()[1])[1:]] == [
        "trainer.max_steps=10",
        "trainer.max_steps=20",
    ]


def test_the_most_informative_keys_come_first_without_nulls_and_defaults(runs, make_run):
    """The folder has many kinds of runs, and the differing keys must not be cut off behind keys
    without information."""
    targets = ["p.A", "p.B", "p.A", "p.A", "p.A"]
    typed = [
        "optimizer.lr=0.1",
        "optimizer.lr=0.2",
        "+run.tag=again",
        "seed=1",
        "trainer.max_steps=5",
    ]
    for number, (target, override) in enumerate(zip(targets, typed, strict=True)):
        settings = config(
            lr={0: 0.1, 1: 0.2}.get(number, 0.001),
            seed=int(number == 3),
            steps=5 if number == 4 else 10,
        )
        settings["model"] = {"_target_": target}
        settings["run"]["tag"] = "again" if number == 2 else None
        if number == 1:
            del settings["scheduler"]  # it follows trainer.max_steps where it exists
        make_run("m", f"aaaa000{number}", config=settings, choices=MLP, overrides=[override])
    assert [line[2:4] for line in rows(runs()[1])[1:]] == [
        ["model._target_=p.A optimizer.lr=0.1", "completed"],
        ["model._target_=p.B optimizer.lr=0.2", "completed"],
        ["model._target_=p.A run.tag=again", "completed"],
        ["model._target_=p.A seed=1", "completed"],
        ["model._target_=p.A trainer.max_steps=5", "completed"],
    ]
    full = [list(run["differs"]) for run in json.loads(runs("--json")[1])]
    assert full[0] == ["model._target_", "optimizer.lr", "run.tag", "seed", "trainer.max_steps"]


def test_a_run_that_has_only_defaults_shows_them(runs, make_run):
    for number, overrides in enumerate(([], ["optimizer.lr=0.1"])):
        make_run(
            "m",
            f"aaaa000{number}",
            config=config(lr=0.1 if number else 0.01),
            choices=MLP,
            overrides=overrides,
        )
    assert [line[2] for line in rows(runs()[1])[1:]] == ["optimizer.lr=0.01", "optimizer.lr=0.1"]


def test_a_value_that_no_command_line_sets_is_shown(runs, make_run):
    for number, lr in enumerate((0.1, 0.2)):  # the project's own YAML files were edited in between
        make_run("m", f"aaaa000{number}", config=config(lr=lr), choices=MLP)
    assert [line[2] for line in rows(runs()[1])[1:]] == ["optimizer.lr=0.1", "optimizer.lr=0.2"]


@pytest.mark.parametrize("width", [None, 200, 120, 70])
def test_failed_runs_have_a_reason(make_run, outputs, width):
    make_run("m", "aaaa0001", config=config(seed=0), loss=1.5)
    for number in (2, 3):
        folder = make_run("m", f"aaaa000{number}", config=config(seed=number), state="failed")
        record = json.loads(folder.record_path.read_text())
        record["attempts"][-1]["reason"] = f"RuntimeError: number {number}\n" + "x" * 100
        folder.record_path.write_text(json.dumps(record))
    runs = find_runs(outputs)
    heading, completed, *failed = table(runs, time.time(), width).lines(width)
    assert (heading.split()[-1] == "reason") == (width != 70)
    assert all("seed=" in line for line in failed)
    if width != 70:
        assert completed.endswith("  -")
        assert [
            f"RuntimeError: number {number}" in line
            for number, line in zip((2, 3), failed, strict=True)
        ] == [
            True,
            True,
        ]
    assert "reason" not in next(table(runs[:1], time.time(), width).lines(width))


def test_a_part_that_one_run_has_is_known_by_its_settings(runs, make_run):
    make_run("gpt", "aaaa0001", config=config())
    hook = {
        "ema": {"_target_": "launcher.hooks.ema.EmaHook", "decay": 0.9},
        "bare": {"_target_": "a.B"},
    }
    make_run("gpt", "aaaa0002", config={**config(), "hooks": hook})
    told = [run["differs"] for run in json.loads(runs("--json")[1])]
    assert told == [{}, {"hooks.bare._target_": "a.B", "hooks.ema.decay": "0.9"}]


def test_listing_hides_settings_that_cannot_change_the_numbers(runs, make_run):
    for number in (1, 2):
        settings = config()
        settings["run"] |= {
            "tag": "again" if number == 2 else None,
            "identity_exclude": ["hooks.logging", "device", "run", "job"],
        }
        settings |= {
            "device": f"cuda:{number}",
            "hooks": {"logging": {"interval": number}, "ema": {"decay": number}},
        }
        make_run("gpt", f"aaaa000{number}", config=settings, choices={**GPT, "job": str(number)})
    told = [run["differs"] for run in json.loads(runs("--json")[1])]
    assert told == [
        {"hooks.ema.decay": "1", "run.tag": "null"},
        {"hooks.ema.decay": "2", "run.tag": "again"},
    ]


def test_json(runs, sweep, outputs):
    code, output, _ = runs("--json")
    found = json.loads(output)
    assert code == 0 and [run["state"] for run in found] == [
        "completed",
        "stale",
        "running",
        "preempted",
    ]
    assert found[2]["best"] == {"metric": "val/loss", "value": 0.25, "step": 4}
    assert found[2]["folder"] == str(outputs / "mlp" / "bbbb0003")
    assert found[2]["differs"] == {"model": "mlp", "optimizer.lr": "1e-05", "seed": "0"}
    assert len(found[2]["attempts"]) == 1


def test_damaged_runs_are_listed_too(runs, make_run, outputs):
    make_run("gpt", "aaaa0001").record_path.write_text("{")
    folder = make_run("gpt", "aaaa0002")
    folder.record_path.write_text(
        json.dumps(json.loads(folder.record_path.read_text()) | {"config": {}})
    )
    code, output, _ = runs()
    assert code == 0 and {tuple(line[1:3]) for line in rows(output)[1:]} == {
        ("aaaa0001", "damaged"),
        ("aaaa0002", "completed"),
    }
    assert runs("show", "aaaa0001")[0] == 0


@pytest.mark.parametrize(
    "words", [["--sort=train/loss"], ["--columns=train/loss"], ["show", "aaaa"]]
)
def test_a_number_larger_than_any_float_is_no_error(runs, make_run, words):
    folder = make_run("gpt", "aaaa0001")
    folder.metrics_path.write_text(f'{{"step": 1, "train/loss": 1{"0" * 400}}}\n')
    assert runs(*words)[0] == 0
