import signal
import subprocess
import sys
from itertools import chain, product
from shlex import split

import pytest

from launcher.runs.__main__ import VERBS, main, parse


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("shwo gpt", "'shwo': is not a verb … did you mean show?"),
        ("gpt", "'gpt': is not a verb … show gpt"),
        ("src", "'src': is not a verb … --outputs=src."),
        ("list gtp", "'gtp': … did you mean gpt?"),
        ("show 1a2c", "'1a2c': … did you mean 1a2b?"),
        ("optimizer.ls=1", "'optimizer.ls': … did you mean optimizer.lr?"),
        ("logs gpt -n -1", "--lines=-1: "),
        ("logs gpt --rank 3", "--rank=3: gpt/1a2b … launcher.log, rank-1.log."),
        ("list --jsn", "unrecognized arguments: --jsn; see python -m launcher.runs list --help."),
        ("list --sort=", "'--sort=': "),
        ("show", "the following arguments are required: RUN"),
        ("show 1a2b --outputs", "argument --outputs: expected one argument"),
        ("plot gpt -o ''", "argument -o/--output: should be a path"),
        ("report -o ''", "argument -o/--output: should be a path"),
        ("adopt gpt --config-dir ''", "argument --config-dir: should be a path"),
        ("--outputs ''", "argument --outputs: should be a path"),
        *((f"{verb} x {'5 ' * (verb == 'rollback')}--nope", "unrecognized arguments: --nope")
          for verb in VERBS),
    ],
)  # fmt: skip
def test_a_bad_command_line_is_a_sentence(runs, make_run, words, named):
    folder = make_run("gpt", "1a2b", config={"optimizer": {"lr": 0.1}})
    for rank in (0, 1):
        folder.log_path(rank).write_text("")
    code, output, error = runs(*split(words))
    first, _, last = named.partition(" … ")
    assert (code, output, error.count("\n")) == (2, "", 1), error
    assert error.startswith(first) and last in error


@pytest.mark.parametrize("verb", ["list", "show"])
def test_a_folder_of_runs_must_exist(verb, tmp_path, capsys):
    assert main([verb, "a", "--outputs", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith(f"--outputs={tmp_path / 'none'}: ")


@pytest.mark.parametrize("verb", [[], *([verb] for verb in VERBS)])
def test_help_of_each_verb(runs, verb):
    with pytest.raises(SystemExit) as left:
        runs(*verb, "--help")
    assert left.value.code == 0


@pytest.mark.parametrize("verb", sorted({*VERBS} - {"check", "test"}))
def test_a_run_that_an_unset_variable_left_empty_is_rejected(runs, make_run, verb):
    """Every name begins with an empty text, so it would mean all runs."""
    make_run("gpt", "1a2b")
    words = {"compare": ["", ""], "rollback": ["", "5"]}.get(verb, [""])
    code, output, error = runs(verb, *words)
    assert (code, output) == (2, "") and error.startswith("'': names no run; a variable")


@pytest.mark.parametrize("verb", sorted({*VERBS} - {"check", "test"}))
def test_a_name_that_is_too_long_for_a_file_names_no_run(runs, make_run, verb):
    make_run("gpt", "1a2b")
    name = "a" * 300
    words = {"compare": [name, name], "rollback": [name, "5"]}.get(verb, [name])
    code, output, error = runs(verb, *words)
    assert (code, output, error.count("\n")) == (2, "", 1) and error.startswith(f"'{name}': ")


def test_without_runs(runs, outputs):
    outputs.mkdir()
    assert runs() == (0, "", f"There are no runs in {outputs}.\n")
    assert runs("list", "paths.outputs=many")[2].endswith(
        " that match paths.outputs=many. Another folder of runs is --outputs many.\n"
    )
    for words in (["show", "gpt"], ["cancel", "--all"], ["retry", "--all"], ["sync"]):
        code, _, error = runs(*words)
        assert code == 2 and f"here are no runs in {outputs}" in error


FILTER, COMMAND = ["state=completed", "model=mlp"], ["1a2b", "+trainer.max_steps=9", "~hooks.ema"]
ANY_ORDER = {
    "list": (FILTER, ["--json"], ["--sort", "step"]),
    "predict": (COMMAND, ["--data", "a.csv"], ["--out", "b.jsonl"]),
    "fork": (COMMAND, ["--at", "3"]),
    "adopt": (COMMAND, ["--config-dir", "conf"]),
    "test": (["optimizer", *FILTER], ["--json"]),
    "show": (FILTER, ["--note", "a text"], ["--label", "paper"]),
}
"""A verb, its words, and some of its options."""


@pytest.mark.parametrize("verb", ANY_ORDER)
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
    code = (
        "import sys; from launcher.runs.__main__ import main; assert main(['show', 'gpt',"
        f" '--outputs', {str(outputs)!r}]) == main(['--outputs', {str(outputs)!r}]) == 0;"
        " sys.exit(str({'torch', 'hydra', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "set()\n"
