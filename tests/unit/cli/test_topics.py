"""`--help optimizer` and its kin, read from the YAML files and the signatures."""

import pytest

from launcher.cli.help import print_help
from launcher.cli.topics import topic_text
from launcher.config.options import groups, main_folder
from launcher.errors import ConfigError

FOLDERS = [main_folder()]


def test_an_option_has_its_class_and_each_key_its_default_comment_and_type():
    assert topic_text("optimizer=sgd", FOLDERS).startswith(
        "optimizer=sgd   launcher.optim.optimizers.sgd\n"
        "  optimizer.lr=0.1\n"
        "      highest learning rate (a number greater than 0)\n"
    )
    assert "  +scheduler.threshold=0.0001\n" in topic_text("scheduler=plateau", FOLDERS), (
        "not in the YAML file"
    )


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("trainer", "trainer.max_grad_norm=1.0"),
        ("run", "run.tag=null"),
        ("seed", "seed=0"),
        (
            "hooks.checkpointing.keep_previous",
            "hooks=checkpointing\n  hooks.checkpointing.keep_previous=1\n",
        ),
        ("hooks.evaluation", "hooks.evaluation.at_start=true"),
        ("experiment=digits_mlp", "includes data=digits model=mlp"),
        ("~hooks", "hooks=early_stopping"),
    ],
)
def test_topics(topic, expected):
    assert expected in topic_text(topic, FOLDERS)


@pytest.mark.parametrize(
    ("topic", "meant"),
    [
        ("optimzer", "optimizer"),
        ("optimizer=adamx", "adam"),
        ("trainer.max_stps", "trainer.max_steps"),
    ],
)
def test_an_unknown_topic(topic, meant):
    with pytest.raises(ConfigError, match=rf"^--help {topic}: .*did you mean {meant}\?"):
        print_help(["--help", topic])


@pytest.mark.parametrize("width", [40, 120])
def test_every_group_is_shown_within_the_width(width):
    for group in groups(FOLDERS):
        lines = topic_text(group, FOLDERS, width).splitlines()
        assert all(len(line) <= width for line in lines if line.startswith("      "))


@pytest.mark.parametrize("text", [b"a: [1", b"\xff", b"[a]", b"", b"3", b"defaults: x"])
def test_a_file_that_is_no_option_is_named_or_shown(tmp_path, capsys, text):
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer" / "mine.yaml").write_bytes(text)
    try:
        print_help(["--config-dir", str(tmp_path), "--help", "optimizer=mine"])
        assert capsys.readouterr().out.startswith("optimizer=mine")
    except ConfigError as error:
        assert str(error).startswith(f"{tmp_path}/optimizer/mine.yaml: cannot be read: ")


def test_a_folder_of_the_users(tmp_path, capsys):
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer" / "mine.yaml").write_text(
        "# For us.\n_target_: torch.optim.SGD\nlr: 0.5  # large\n"
    )
    print_help(["--config-dir", str(tmp_path), "--help", "optimizer=mine"])
    shown = capsys.readouterr().out
    assert shown.startswith(
        "optimizer=mine   torch.optim.SGD\n  For us.\n  optimizer.lr=0.5\n      large"
    )


def test_an_option_that_chooses_options_of_other_groups_has_the_keys_of_its_own(tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /optimizer: none\n"
        "model:\n  _target_: launcher.models.mlp.MLP\n  hidden_dim: 3\n"
    )
    print_help(["--config-dir", str(tmp_path), "--help", "model=mine"])
    shown = capsys.readouterr().out
    assert shown.startswith("model=mine   launcher.models.mlp.MLP\n  includes optimizer=none\n")
    assert "  model.hidden_dim=3\n" in shown
