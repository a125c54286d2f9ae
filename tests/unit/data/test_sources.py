"""Samples that each source makes of its files and options, and errors for wrong ones."""

import pickle
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from launcher.data.custom import CustomData
from launcher.data.digits import DigitsData
from launcher.data.file_patterns import find_files
from launcher.data.synthetic import SyntheticData
from launcher.data.table import TableData
from launcher.data.text import STANDARD_LIBRARY, TextData
from launcher.data.tokens import TokenData
from launcher.errors import ConfigError
from support.paths import ROOT

CONF = ROOT / "conf" / "data"


def text(windows):
    """The bytes that the inputs of all windows make, and the same of the targets."""
    inputs, targets = windows.get_batch(np.arange(len(windows)))
    return bytes(inputs.flatten().tolist()), bytes(targets.flatten().tolist())


@pytest.fixture
def corpus(tmp_path):
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_text(f"{number:02} a line of text\n")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "last.txt").write_text("and one more, further down\n")
    return tmp_path


def test_sources_import_nothing_heavy():
    """So that a missing file is reported at once."""
    code = """
import sys
from launcher.data import text, tokens, digits, synthetic, custom, documents
assert len(digits.DigitsData(batch_size=1).train_dataset())
sys.exit(bool({"torch", "sklearn", "scipy"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# Files


def test_files_are_sorted_and_each_there_once(corpus, monkeypatch):
    found = find_files("data.files", [f"{corpus}/**/*.txt", str(corpus / "00.txt")])
    assert len(found) == 21 and found == sorted(found)
    monkeypatch.chdir(corpus)
    assert [path.name for path in find_files("data.files", "0[12].txt")] == ["01.txt", "02.txt"]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ("no/*.txt", r"^data.files='no/\*.txt': matches no file"),
        ("deeper", "^data.files='deeper': is a folder"),
        ([], "names no file"),
    ],
)
def test_bad_files_are_sentences(corpus, monkeypatch, patterns, message):
    monkeypatch.chdir(corpus)
    with pytest.raises(ConfigError, match=message):
        find_files("data.files", patterns)


def test_missing_files_are_reported_before_any_are_read(corpus):
    there = f"{corpus}/*.txt"
    TextData(batch_size=2, files=there).check()
    TextData(batch_size=2).check()
    for source, key in [
        (TextData(batch_size=2, files="no.txt"), "files"),
        (TokenData(batch_size=2, vocab_size=9, files="no.npy"), "files"),
        (TokenData(batch_size=2, vocab_size=9, files=there, val_files="no.npy"), "val_files"),
    ]:
        with pytest.raises(ConfigError, match=rf"^data\.{key}='no\.\w+': matches no file"):
            source.check()


# Text


def test_text_holds_files_out(corpus):
    source = TextData(batch_size=2, files=f"{corpus}/*.txt", seq_len=4, val_fraction=0.1)
    inputs, targets = text(source.train_dataset())
    whole = "".join(f"{n:02} a line of text\n" for n in range(20) if n not in (9, 19)).encode()
    assert inputs == whole[: len(inputs)] and targets == whole[1 : len(inputs) + 1]
    held_out, _ = text(source.val_dataset())
    assert held_out == b"09 a line of text\n19 a line of text\n"[: len(held_out)]
    source.val_fraction = 0
    assert source.val_dataset() is None and source.val_loader() is None


def test_text_validates_on_a_few_samples_spread_over_what_is_held_out(corpus):
    options = {"batch_size": 2, "files": f"{corpus}/*.txt", "seq_len": 4, "val_fraction": 0.1}
    whole, few, more = (
        TextData(**options, val_samples=count).val_dataset() for count in (None, 3, 99)
    )
    assert (len(whole), len(few), len(more)) == (8, 3, 8)
    for index, place in enumerate([0, 2, 5]):
        assert few[index][0].equal(whole[place][0]) and few[index][1].equal(whole[place][1])


def test_text_of_one_file_holds_its_end_out(tmp_path):
    path = tmp_path / "one.txt"
    path.write_bytes(bytes(range(200)))
    source = TextData(batch_size=2, files=str(path), seq_len=9, val_fraction=0.25)
    assert text(source.train_dataset())[0] == bytes(range(144))
    assert text(source.val_dataset())[0] == bytes(range(150, 195))


def test_default_text_is_the_standard_library():
    source = TextData(batch_size=32)
    assert {"argparse.py", "typing.py"} <= {
        path.name for path in find_files("data.files", STANDARD_LIBRARY)
    }
    assert len(source.train_dataset()) > 10_000 and 200 < len(source.val_dataset()) < 5_000
    assert source.train_dataset().fingerprint == TextData(batch_size=8).train_dataset().fingerprint


def test_changed_text_is_noticed(corpus):
    def make():
        return TextData(batch_size=2, files=f"{corpus}/*.txt", seq_len=4).train_loader(seed=0)

    state = make().state_dict()
    make().load_state_dict(state)
    (corpus / "03.txt").write_text("03 a line of tExt\n")
    with pytest.raises(ConfigError, match="restore them, or start another run"):
        make().load_state_dict(state)


# Tokens


@pytest.fixture
def token_files(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(10, dtype=np.uint16))
    np.save(tmp_path / "b.npy", np.arange(70_000, 70_009, dtype=np.uint32))
    np.save(tmp_path / "short.npy", np.arange(3, dtype=np.uint16))
    np.arange(20, dtype="<u2").tofile(tmp_path / "raw.bin")
    return tmp_path


def test_token_windows_of_several_files(token_files):
    source = TokenData(batch_size=2, files=f"{token_files}/*.npy", seq_len=4, vocab_size=80_000)
    dataset = source.train_dataset()
    inputs, targets = dataset.get_batch(np.array([3, 0, 1, 2]))
    assert inputs.dtype == torch.int64 and inputs.is_contiguous() and targets.is_contiguous()
    assert inputs[:, 0].tolist() == [70_004, 0, 4, 70_000]
    assert torch.equal(targets, inputs + 1)
    assert len(dataset) == 4 and dataset[2][0].tolist() == [70_000, 70_001, 70_002, 70_003]
    with pytest.raises(IndexError):
        dataset[4]


def test_raw_token_files(token_files):
    source = TokenData(
        batch_size=2, files=f"{token_files}/raw.bin", seq_len=4, vocab_size=20, val_files=[]
    )
    assert text(source.train_dataset())[0] == bytes(range(16))
    with pytest.raises(ConfigError, match=r"^data.val_files=\[\]"):
        source.val_dataset()


def test_tokens_are_mapped_and_not_pickled(token_files):
    np.save(token_files / "large.npy", np.zeros(10**6, dtype=np.uint16))
    source = TokenData(batch_size=2, files=f"{token_files}/large.npy", seq_len=4, vocab_size=5)
    pickled = pickle.dumps(source.train_dataset())
    assert len(pickled) < 1000
    assert pickle.loads(pickled).fingerprint == source.train_dataset().fingerprint


@pytest.mark.parametrize(
    "options, message",
    [
        ({"files": "a.npy", "vocab_size": 8}, r"^data.vocab_size=8: .* 10 or more\.$"),
        ({"files": "a.npy", "seq_len": 10}, "^data.seq_len=10: .*no sample of 11 tokens"),
        ({"files": "float.npy"}, "holds float64 of shape"),
        ({"files": "fake.npy"}, "is not a .npy file of tokens"),
        ({"files": "raw.bin", "dtype": "uint32", "seq_len": 4}, None),
        ({"files": "odd.bin"}, "^data.dtype=uint16: .*odd.bin has 3 bytes"),
        ({"files": "c.npy"}, "^data.files='.*c.npy': matches no file"),
    ],
)
def test_bad_token_files_are_sentences(token_files, options, message):
    np.save(token_files / "float.npy", np.zeros(4))
    (token_files / "fake.npy").write_text("not at all")
    (token_files / "odd.bin").write_bytes(b"abc")
    defaults = {"batch_size": 2, "vocab_size": 10**9, "seq_len": 9}
    source = TokenData(**defaults | options | {"files": f"{token_files}/{options['files']}"})
    if message is None:
        assert len(source.train_dataset()) == 2
        return
    with pytest.raises(ConfigError, match=message):
        source.train_dataset().get_batch(np.arange(1))


# Digits and synthetic tokens


def test_digits():
    source = DigitsData(batch_size=32)
    train, val = source.train_dataset(), source.val_dataset()
    assert (len(train), len(val)) == (1438, 359)
    inputs, targets = train.get_batch(np.arange(5))
    assert inputs.shape == (5, 64) and inputs.dtype == torch.float32
    assert 0 <= inputs.min() < inputs.max() <= 1
    assert targets.tolist() == [0, 1, 2, 3, 5] and val.targets[0] == 4
    assert set(val.targets.tolist()) == set(range(10))


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError, match=r"^data=digits: .* 'torch-launcher\[digits\]'"):
        DigitsData(batch_size=32).train_dataset()


def test_synthetic_tokens_depend_on_seed_and_index_alone():
    source = SyntheticData(
        batch_size=4, vocab_size=50, seq_len=6, num_samples=30, num_val_samples=10, seed=1
    )
    train, val = source.train_dataset(), source.val_dataset()
    inputs, targets = train.get_batch(np.arange(30))
    assert inputs.shape == targets.shape == (30, 6) and torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.min() >= 0 and inputs.max() < 50 and len(inputs.unique()) > 40
    assert torch.equal(train[17][0], inputs[17])
    other = SyntheticData(batch_size=4, vocab_size=50, seq_len=6, seed=2).train_dataset()
    assert not torch.equal(other.get_batch(np.arange(30))[0], inputs)
    assert not any(torch.equal(val[i][0], row) for i in range(len(val)) for row in inputs)
    assert SyntheticData(batch_size=4, num_val_samples=0).val_dataset() is None


# Custom


class Squares:
    def __init__(self, size, scale=1):
        self.size = size
        self.scale = scale

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return {"x": index * self.scale, "noise": torch.rand(())}


def join(samples, sign):
    return sign * sum(sample["x"] for sample in samples)


def node(name, **options):
    return {"_target_": f"{__name__}.{name}"} | options


def test_custom_datasets_are_made_late():
    config = OmegaConf.load(CONF / "custom.yaml")
    config.dataset = {"_target_": "no_such_module.Dataset"}
    source = instantiate(config)
    with pytest.raises(Exception, match="no_such_module"):
        source.train_dataset()
    config.dataset = "no_such_module.Dataset"
    with pytest.raises(
        ConfigError, match=r"^data\.dataset='no_.*; e\.g\. data\.dataset\._target_=no_"
    ):
        instantiate(config).train_dataset()


def test_custom_batches_and_augmentation():
    def take(samples):
        loader = CustomData(dataset=Squares(9), batch_size=3).train_loader(seed=1)
        loader.samples = samples
        return list(islice(loader, 2))

    (_, batch), (again, _) = take(3), take(6)
    assert set(batch) == {"x", "noise"} and batch["noise"].shape == (3,)
    assert torch.equal(batch["x"], again["x"]) and torch.equal(batch["noise"], again["noise"])


@pytest.mark.parametrize("name", [None, "more"])
@pytest.mark.parametrize(("sign", "expected"), [(None, [-3]), (1, [3])])
def test_validation_has_a_collate_function_of_its_own_or_that_of_training(name, sign, expected):
    config = OmegaConf.load(CONF / "custom.yaml")
    config.dataset = config.val_dataset = node("Squares", size=3)
    config.val_datasets = {"more": node("Squares", size=3)}
    config.collate_fn = node("join", sign=-1, _partial_=True)
    config.val_collate_fn = None if sign is None else node("join", sign=sign, _partial_=True)
    config.shuffle, config.batch_size = False, 3
    source = instantiate(config)
    assert list(source.val_loader(name=name)) == expected
    assert list(islice(source.train_loader(seed=0), 1)) == [-3]


def test_loaders_of_a_source():
    source = SyntheticData(batch_size=12, seq_len=4, num_val_samples=10)
    loader = source.train_loader(seed=0, rank=1, world_size=3)
    assert next(iter(loader))[0].shape == (4, 4) and loader.samples == 12
    assert [len(batch[0]) for batch in source.val_loader(rank=1, world_size=2)] == [4]
    assert [len(batch[0]) for batch in source.val_loader(batch_size=4)] == [4, 4, 2]


@pytest.mark.parametrize(("num_workers", "warnings"), [(0, 0), (2, 1)])
def test_workers_of_a_hugging_face_stream_are_named(num_workers, warnings, caplog):
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_dict({"x": [1.0, 2.0]}).to_iterable_dataset()
    CustomData(dataset=stream, batch_size=2, num_workers=num_workers).train_loader(seed=0)
    assert caplog.text.count(f"data.num_workers={num_workers}: a shuffled stream") == warnings


def test_new_data_of_each_source(tmp_path):
    (tmp_path / "new.txt").write_bytes(bytes(range(50)))
    new = {"predict": str(tmp_path / "new.txt"), "files": str(tmp_path / "gone.txt")}
    source = TextData(batch_size=2, seq_len=16, **new)
    source.check()
    assert len(source.predict_dataset()) == 3
    with pytest.raises(ConfigError, match=r"^data\.seq_len=50: the files of data\.predict"):
        TextData(batch_size=2, seq_len=50, **new).predict_dataset()
    assert TextData(batch_size=2).predict_dataset() is None
    np.save(tmp_path / "new.npy", np.arange(50, dtype=np.uint16))
    new |= {"predict": str(tmp_path / "new.npy")}
    tokens = TokenData(batch_size=2, seq_len=16, vocab_size=50, **new)
    tokens.check()
    assert len(tokens.predict_dataset()) == 3
    with pytest.raises(ConfigError, match=r"^data\.vocab_size=20: .*data\.predict hold token 32"):
        TokenData(batch_size=2, seq_len=16, vocab_size=20, **new).predict_dataset()[1]
    custom = CustomData(dataset=Squares(9), batch_size=3, predict=Squares(4))
    assert len(custom.predict_dataset()) == 4
    batches = custom.batches(custom.predict_dataset(), [(2, 4), (0, 2)], torch.device("cpu"))
    assert [batch["x"].tolist() for batch in batches] == [[2, 3], [0, 1]]
    with pytest.raises(ConfigError, match="should be a dataset with this data source"):
        CustomData(dataset=Squares(9), batch_size=3, predict="new.csv").predict_dataset()


@pytest.mark.parametrize("kind", ["csv", "npy"])
@pytest.mark.parametrize("key", ["files", "val_files", "predict"])
def test_a_message_about_a_file_names_the_key_of_the_file(tmp_path, kind, key):
    good, bad = {"csv": ("x,y\n1,2\n3,4\n", "z\n1\n"), "npy": ("", "")}[kind]
    for name, content in (("good", good), ("bad", bad)):
        (tmp_path / f"{name}.{kind}").write_text(content)
    files = {"files": f"{tmp_path}/good.{kind}"} | {key: f"{tmp_path}/bad.{kind}"}
    if kind == "npy":
        np.save(tmp_path / "good.npy", np.zeros(50, dtype=np.uint16))
        source = TokenData(batch_size=2, vocab_size=9, seq_len=4, **files)
    else:
        source = TableData(batch_size=1, target="y", features=["x"], **files)
    with pytest.raises(ConfigError, match=rf"^data\.{key}: {tmp_path}/bad\.{kind}"):
        read = {"files": "train_dataset", "val_files": "val_dataset", "predict": "predict_dataset"}
        getattr(source, read[key])()
