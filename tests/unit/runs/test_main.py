import signal
import subprocess
import sys
from itertools import chain, product

import pytest

from launcher.runs.__main__ import VERBS, main, parse


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["shwo", "gpt"],
            f"'shwo': is not a verb ({', '.join(VERBS)}); did you mean show?\n",
        ),
        (
            ["gpt"],
            (
                f"'gpt': is not a verb ({', '.join(VERBS)}); for a run write `show"
                " gpt` or `list gpt`.\n"
            ),
        ),
        (
            ["src"],
            (
                f"'src': is not a verb ({', '.join(VERBS)}); for the runs of a folder"
                " write --outputs=src.\n"
            ),
        ),
        (
            ["list", "gtp"],
            (
                "'gtp': no run has this in its name, at the beginning of its id, or as its folder;"
                " did you mean gpt?\n"
            ),
        ),
        (
            ["cancel", "1a2c"],
            (
                "'1a2c': no run has this in its name, at the beginning of its id, or as its folder;"
                " did you mean 1a2b?\n"
            ),
        ),
        *(
            (
                [verb],
                (
                    f"the following arguments are required: RUN; see python -m launcher.runs {verb}"
                    " --help.\n"
                ),
            )
            for verb in ("resume", "evaluate", "export", "fork")
        ),
        *(
            (
                [verb, *["x", "5"][: 1 + (verb == "rollback")], "--nope"],
                f"unrecognized arguments: --nope; see python -m launcher.runs {verb} --help.\n",
            )
            for verb in VERBS
        ),
        (
            ["show"],
            "the following arguments are required: RUN; see python -m launcher.runs show --help.\n",
        ),
        (
            ["list", "--jsn"],
            "unrecognized arguments: --jsn; see python -m launcher.runs list --help.\n",
        ),
        (["show", "gtp"], "'gtp': is not a run in {outputs}; did you mean gpt?\n"),
        (["show", "zzz"], "'zzz': is not a run in {outputs}. Its runs have the names gpt.\n"),
        (["logs", "gpt", "-n", "-1"], "--lines=-1: should be 0 or more.\n"),
        (
            ["logs", "gpt", "--rank", "3"],
            "--rank=3: gpt/1a2b has no rank-3.log; it has launcher.log, rank-1.log.\n",
        ),
        (["optimizer.ls=1"], "'optimizer.ls': no run has this key; did you mean optimizer.lr?\n"),
    ],
)
def test_a_bad_command_line_is_a_sentence(runs, make_run, outputs, arguments, sentence):
    folder = make_run("gpt", "1a2b", config={"optimizer": {"lr": 0.1}})
    for rank in (0, 1):
        folder.log_path(rank).write_text("")
    assert runs(*arguments) == (2, "", sentence.format(outputs=outputs))


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_of_runs_must_exist(verb, tmp_path, capsys):
    words = {"compare": ["a", "b"], "rollback": ["a", "5"], "retry": ["a"], "cancel": ["a"]}.get(
        verb, [] if verb in ("list", "report", "sync") else ["a"]
    )
    assert main([verb, *words, "--outputs", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"--outputs={tmp_path / 'none'}: there is no such folder.\n"


@pytest.mark.parametrize("verb", sorted({*VERBS} - {"test"}))
def test_a_run_that_an_unset_variable_left_empty_is_rejected(runs, make_run, verb):
    """Every name begins with an empty text, so it would mean all runs."""
    make_run("gpt", "1a2b")
    words = {"compare": ["", ""], "rollback": ["", "5"]}.get(verb, [""])
    sentence = "'': names no run; a variable of the shell may be unset. Give an id or a name.\n"
    assert runs(verb, *words) == (2, "", sentence)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["plot", "gpt", "-o", ""], "argument -o/--output: should be a path"),
        (["report", "-o", ""], "argument -o/--output: should be a path"),
        (["replay", "gpt", "--scratch", ""], "argument --scratch: should be a path"),
        (["reproduce", "gpt", "--into="], "argument --into: should be a path"),
        (["adopt", "gpt", "--config-dir="], "argument --config-dir: should be a path"),
        (["list", "--sort="], "'--sort=': no run has this key"),
    ],
)
def test_an_empty_path_or_key_is_a_sentence(runs, make_run, words, option):
    make_run("gpt", "1a2b")
    code, output, error = runs(*words)
    assert (code, output, error.count("\n")) == (2, "", 1) and error.startswith(option)


@pytest.mark.parametrize(
    "words", [["--outputs", ""], ["--outputs="], ["show", "gpt", "--outputs="]]
)
def test_an_empty_folder_of_runs_is_rejected(words, capsys):
    assert main(words) == 2
    assert "argument --outputs: should be a path; a variable" in capsys.readouterr().err


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0 and capsys.readouterr().out.startswith("torch-launcher ")


def test_list_without_runs(runs, outputs):
    outputs.mkdir()
    assert runs() == (0, "", f"There are no runs in {outputs}.\n")
    code, _, error = runs("show", "gpt")
    assert code == 2 and "there are no runs" in error and "--outputs=DIR" in error


@pytest.mark.parametrize("verb", [[], *([verb] for verb in VERBS)])
def test_help_of_each_verb(runs, verb):
    with pytest.raises(SystemExit) as left:
        runs(*verb, "--help")
    assert left.value.code == 0


def test_outputs_before_and_after_the_verb(make_run, outputs, start):
    make_run("gpt", "1a2b")
    for arguments in (
        ["list", "--outputs", outputs],
        ["--outputs", outputs, "list"],
        [f"--outputs={outputs}"],
    ):
        command = [sys.executable, "-m", "launcher.runs", *arguments]
        assert "1a2b" in subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_outputs_between_a_verb_and_its_words(make_run, outputs, capsys):
    make_run("gpt", "1a2b")
    assert main(["show", "--outputs", str(outputs), "1a2b"]) == 0
    assert "1a2b" in capsys.readouterr().out
    assert main(["show", "1a2b", "--outputs"]) == 2
    assert "argument --outputs: expected one argument" in capsys.readouterr().err


FILTER, RUNS = ["state=completed", "model=mlp"], ["1a2b", "77f0"]
COMMAND = ["1a2b", "+trainer.max_steps=9", "~hooks.ema"]
ANY_ORDER = {
    "list": (FILTER, ["--json"], ["--sort", "step"]),
    "resume": (COMMAND, ["--trust"]),
    "evaluate": (COMMAND, ["--split", "test"]),
    "export": (COMMAND, ["--trust"]),
    "predict": (COMMAND, ["--data", "a.csv"], ["--out", "b.jsonl"]),
    "fork": (COMMAND, ["--at", "3"]),
    "rollback": (["1a2b", "1400"], ["--json"]),
    "adopt": (COMMAND, ["--config-dir", "conf"]),
    "cancel": (FILTER, ["--all"]),
    "watch": (FILTER, ["--every", "0.5"]),
    "retry": (FILTER, ["--dry-run"]),
    "compare": (RUNS, ["--why"], ["--json"]),
    "plot": (FILTER, ["--log"], ["-o", "a.png"]),
    "report": (FILTER, ["--over", "seed"]),
    "sync": (FILTER, ["--follow"]),
    "replay": (FILTER, ["--from", "0"], ["--json"]),
    "test": (["optimizer", *FILTER], ["--json"]),
    "show": (FILTER, ["--note", "a text"], ["--label", "paper"]),
    "logs": (["1a2b"], ["-n", "3"]),
    "checkpoints": (FILTER, ["--delete"], ["--older", "3d"]),
    "reproduce": (["1a2b"], ["--into", "x"]),
}
"""A verb, its words, and some of its options."""


@pytest.mark.parametrize("verb", VERBS)
def test_the_options_of_a_verb_may_be_at_any_place_among_its_words(verb, tmp_path):
    words, *options = ANY_ORDER[verb]
    options += [["--outputs", str(tmp_path)]]
    expected = parse([verb, *words, *chain.from_iterable(options)])
    for places in product(range(len(words) + 1), repeat=len(options)):
        line = [[word] for word in words]
        for place, option in sorted(zip(places, options, strict=True), reverse=True):
            line.insert(place, option)
        assert parse([verb, *chain.from_iterable(line)]) == expected, line


def test_a_reader_that_leaves_early(make_run, start):
    for number in range(50):
        make_run("gpt", f"{number:08x}")
    process = start("list", stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 128 + signal.SIGPIPE
    process.stderr.close()


def test_listing_runs_imports_no_torch(make_run, outputs):
    make_run("gpt", "1a2b")
    command = (
        "import sys; from launcher.runs.__main__ import main; assert main(['--outputs',"
        f" {str(outputs)!r}]) == 0; assert main(['show', 'gpt', '--outputs', {str(outputs)!r}]) =="
        " 0; print(sorted({'torch', 'hydra', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", command], check=True, capture_output=True, text=True
    )
    assert done.stderr == "[]\n"
