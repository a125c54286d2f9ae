"""The command that writes token files, and TokenData reading them back."""

import sys

import numpy as np
import pytest

from launcher.data import write_tokens
from launcher.data.tokens import TokenData
from launcher.errors import ConfigError
from support import python


def command(*arguments):
    return python.run("-m", "launcher.data.write_tokens", *map(str, arguments))


@pytest.fixture
def corpus(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"{number}: straße\n" * 50)
    return tmp_path


def test_bytes_there_and_back(corpus, tmp_path):
    done = command(tmp_path / "out", f"{corpus}/*.txt", "--val-fraction", 0.25)
    assert done.returncode == 0, done.stderr
    train = "".join(f"{number}: straße\n" * 50 for number in range(3)).encode()
    last = done.stdout.splitlines()[-1]
    assert last.endswith(f"data.val_files={tmp_path}/out/val.npy data.vocab_size=256")
    files = {"files": f"{tmp_path}/out/train.npy", "val_files": f"{tmp_path}/out/val.npy"}
    source = TokenData(batch_size=2, seq_len=10, vocab_size=256, **files)
    dataset = source.train_dataset()
    assert dataset.sequences[0].dtype == np.uint16 and dataset.sequences[0].tolist() == list(train)
    inputs, _ = dataset.get_batch(np.arange(len(dataset)))
    assert bytes(inputs.flatten().tolist()) == train[: len(dataset) * 10]
    assert source.val_dataset().sequences[0][:2].tolist() == list(b"3:")


def test_write_tokens_cuts_a_single_file_between_lines(corpus, tmp_path):
    write_tokens.run([str(tmp_path / "out"), str(corpus / "1.txt"), "--val-fraction", "0.1"])
    train, val = (
        bytes(np.load(tmp_path / "out" / f"{name}.npy").tolist()) for name in ("train", "val")
    )
    assert train + val == (corpus / "1.txt").read_bytes()
    assert val.startswith(b"1: ") and 30 < len(val) <= 60


def test_large_files_go_through_in_chunks(corpus, tmp_path, monkeypatch):
    """No byte is lost or doubled, no character and no line cut, wherever the chunks end."""
    expected = (corpus / "1.txt").read_bytes()
    for size in (1, 2, 7, 64):
        monkeypatch.setattr(write_tokens, "CHUNK", size)
        chunks = list(write_tokens.chunks((corpus / "1.txt", 0, len(expected))))
        assert b"".join(chunks) == expected and len(chunks) > 1
        assert all(chunk.endswith(b"\n") for chunk in chunks)
        first = list(write_tokens.chunks((corpus / "1.txt", 3, len(expected) - 4)))
        assert b"".join(first) == expected[3:-4]


def test_wide_vocabularies_take_uint32(tmp_path):
    def encode(part):
        yield np.array([1, 70_000], dtype=np.uint32)

    assert write_tokens.write(tmp_path, "wide", [(tmp_path, 0, 0)] * 3, encode, 70_001) == 6
    tokens = np.load(tmp_path / "wide.npy", mmap_mode="r")
    assert tokens.dtype == np.uint32 and tokens.tolist() == [1, 70_000] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["wide.npy"]


@pytest.fixture
def tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<end>": 0, "<unknown>": 1, "straße": 2, ":": 3} | {str(n): n + 4 for n in range(4)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unknown>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    (tmp_path / "tokenizer").mkdir()
    made.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    return tmp_path / "tokenizer"


def test_hugging_face_tokenizer(corpus, tokenizer):
    out = corpus / "out"
    given = [str(out), f"{corpus}/*.txt", "--val-fraction=0"]
    write_tokens.run([*given, f"--tokenizer={tokenizer}", "--end=<end>"])
    expected = [t for n in range(4) for t in [4 + n, 3, 2] * 50 + [0]]
    assert np.load(out / "train.npy").tolist() == expected and not (out / "val.npy").exists()
    with pytest.raises(ConfigError, match=r"^--end='<stop>': is not a token of the tokenizer"):
        write_tokens.run([*given, f"--tokenizer={tokenizer}", "--end=<stop>"])
    with pytest.raises(ConfigError, match="has no tokenizer"):
        write_tokens.run([*given, f"--tokenizer={corpus}"])


def test_a_stored_truncation_or_padding_does_not_change_the_tokens(corpus, tokenizer):
    from tokenizers import Tokenizer

    def written():
        files = [str(corpus / "out"), f"{corpus}/*.txt"]
        write_tokens.run([*files, "--val-fraction=0", f"--tokenizer={tokenizer}"])
        return np.load(corpus / "out" / "train.npy").tolist()

    path, expected = str(tokenizer / "tokenizer.json"), written()
    for stored in ({"max_length": 3}, {"max_length": 4, "stride": 1}):
        made = Tokenizer.from_file(path)
        made.enable_truncation(**stored)
        made.enable_padding(length=1000)
        made.save(path)
        assert written() == expected


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["no.txt"], "FILE='no.txt': matches no file"),
        (["0.txt", "--val-fraction", "1.5"], "--val-fraction=1.5: "),
        (["0.txt", "--end", "x"], "--end='x': "),
        (["line.txt"], "no line of"),
        (["0.txt", "--tokenizer", "x"], "--tokenizer: needs the package tokenizers"),
    ],
)
def test_errors_are_sentences(corpus, monkeypatch, capsys, arguments, message):
    (corpus / "line.txt").write_text("a single line")
    monkeypatch.chdir(corpus)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setattr(sys, "argv", ["write_tokens", "out", *arguments])
    assert write_tokens.main() == 2
    assert message in capsys.readouterr().err
    assert not (corpus / "out").exists()
