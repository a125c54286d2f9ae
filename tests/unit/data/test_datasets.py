"""Rows by the installed version of `datasets`: map-style, and as streams that resume."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.config.trust import code_in
from launcher.data.datasets import BUILDERS, Datasets, _read, stores_its_buffer
from launcher.data.declared import has_state, hidden_parts
from launcher.errors import ConfigError
from support.batches import take

datasets: Any = pytest.importorskip("datasets")
ROWS = [{"x": [float(i), i / 2], "y": i % 3} for i in range(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two files of each builder."""
    folder = tmp_path_factory.mktemp("rows")
    for number in range(2):
        rows = datasets.Dataset.from_list(ROWS[number * 6 : number * 6 + 6])
        rows.to_parquet(folder / f"{number}.parquet")
        rows.to_json(folder / f"{number}.json")
        rows.remove_columns("x").to_csv(folder / f"{number}.csv")
        (folder / f"{number}.text").write_text("".join(f"{row}\n" for row in range(6)))
        with datasets.arrow_writer.ArrowWriter(path=str(folder / f"{number}.arrow")) as writer:
            writer.write_batch(rows.to_dict())
            writer.finalize()
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)


def source(folder: Path, path: str = "parquet", **keys: Any) -> Datasets:
    made = Datasets(batch_size=2, path=path, files=str(folder / f"*.{path}"), **keys)
    made.check()
    return made


TABLES = [path for path in BUILDERS if path != "imagefolder"]


@pytest.mark.parametrize("path", TABLES)
def test_a_stream_in_its_order_resumes_by_its_state_after_any_row(path, folder):
    def stream() -> Any:
        return source(folder, path, streaming=True, shuffle=False).train_dataset()

    whole = [str(row) for row in stream()]
    assert len(whole) == 12 and has_state(stream())
    for count in range(13):
        stopped, resumed = stream(), stream()
        rows = iter(stopped)
        first = [str(next(rows)) for _ in range(count)]
        resumed.load_state_dict(stopped.state_dict())
        assert [*first, *map(str, resumed)] == whole


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_of_a_stream_resumes_exactly(shuffle, folder, caplog):
    """The second epoch has an order of its own if rows are shuffled."""

    def loader() -> Any:
        keys: Any = {"streaming": True, "shuffle": shuffle, "shuffle_buffer": 5}
        return source(folder, columns=["x", "y"], **keys).train_loader(seed=0)

    straight = [str(batch) for batch in take(loader(), 12)]
    stopped, resumed = loader(), loader()
    first = [str(batch) for batch in take(stopped, 8)]
    resumed.load_state_dict(stopped.state_dict())
    with caplog.at_level("INFO", "launcher"):
        rest = [str(batch) for batch in take(resumed, 4)]
    assert [*first, *rest] == straight
    assert (straight[:6] == straight[6:]) is not shuffle
    reads_again = shuffle and not stores_its_buffer()
    assert ("Reading 16 samples of the stream again" in caplog.text) is reads_again


def test_a_shuffled_stream_hides_no_state(folder):
    assert hidden_parts(source(folder, streaming=True).train_dataset()) == []


def test_rows_are_mappings_or_tuples(folder):
    rows = source(folder, val_files=str(folder / "0.parquet"))
    assert len(rows.train_dataset()) == 12 and len(rows.val_dataset()) == 6
    assert torch.equal(rows.train_dataset()[3]["x"], torch.tensor([3.0, 1.5]))
    pairs = source(folder, columns=["x", "y"])
    input, target = next(iter(pairs.train_loader(seed=0)))
    assert input.shape == (2, 2) and target.dtype == torch.int64


def test_images_of_folders_have_their_class(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        image.new("RGB", (4, 4)).save(tmp_path / name / "1.png")
    keys: Any = {"files": str(tmp_path / "*/*.png"), "columns": ["image", "label"]}
    rows = Datasets(batch_size=2, path="imagefolder", **keys).train_dataset()
    assert [int(label) for _, label in (rows[0], rows[1])] == [0, 1]
    assert rows[0][0].shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"path": "pandas"}, r"^data\.path=pandas: should be parquet, json, "),
        ({"path": "./load.py"}, r"^data\.path=\./load\.py: should be"),
        ({"path": "parquet"}, r"^data\.files: data\.path=parquet reads files"),
        ({"path": "parquet", "files": "a", "config": "en"}, r"^data\.config='en': is for a data"),
        ({"path": "own/data", "files": "a"}, r"^data\.files='a': is for a builder"),
        ({"path": "own/data", "streaming": True, "num_workers": 1}, r"^data\.num_workers=1: with"),
    ],
)
def test_what_cannot_be_read_is_rejected(keys, message):
    with pytest.raises(ConfigError, match=message):
        Datasets(batch_size=2, **keys).check()


@pytest.mark.parametrize("path", ["json", "csv", "text", "parquet", "arrow"])
def test_a_file_of_another_kind_is_one_message(path, tmp_path):
    """Nothing reads it as what it is, such as a pickle."""
    (tmp_path / f"a.{path}").write_bytes(b"\x80\x04\x95\xff\x00")
    with pytest.raises(ConfigError, match=rf"^data\.files=.* cannot be read by {path} \("):
        source(tmp_path, path).train_dataset()


def test_a_split_that_does_not_exist_is_one_message(folder):
    builder = datasets.load_dataset_builder("json", data_files=[str(folder / "0.json")])
    for streaming in (False, True):
        with pytest.raises(
            ConfigError, match=r"^data\.split=x: split x cannot be read by json \(.*train"
        ):
            _read(builder, "x", streaming, "data.split=x")


def test_a_folder_does_not_take_the_place_of_the_hub(tmp_path, monkeypatch):
    """Its script would not run either."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "data").mkdir(parents=True)
    (tmp_path / "own" / "data" / "data.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(ConfigError, match=r"^data\.path=own/data: is a folder here"):
        Datasets(batch_size=2, path="own/data").train_dataset()


def test_the_hub_out_of_reach_is_one_message(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"^data\.path=own/data: "):
        Datasets(batch_size=2, path="own/data").train_dataset()


@pytest.mark.parametrize("where", ["data", "data.sources.web", "data.sources.web.val_dataset"])
def test_a_name_needs_trust_wherever_a_source_stands(where):
    tree: Any = {"_target_": "launcher.data.datasets.Datasets", "path": "own/data"}
    for name in reversed(where.split(".")):
        tree = {name: tree}
    assert list(code_in(tree)) == [f"{where}.path='own/data'"]


def test_without_the_package_it_is_one_message(monkeypatch, folder):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'datasets>=4'"):
        source(folder).train_dataset()
