import json
import sys

import pytest

from launcher.data.record_readers import read_jsonl, read_parquet, read_saved
from launcher.errors import ConfigError

ROWS = [{"text": "one", "more": 1}, {"text": "two", "more": 2}]


def test_lines_of_json(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("\n\n".join(map(json.dumps, ROWS)))
    assert list(read_jsonl(file, ["text"])) == [
        (ROWS[0], f"{file}, line 1"),
        (ROWS[1], f"{file}, line 3"),
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b'{"text": "a"', r"line 2: is not JSON \(Expecting ',' delimiter"),
        (b'["a"]', r'line 2: should be a JSON object; e\.g\. \{"text": "\.\.\."\}'),
        (b'{"text": "\xff"}', r"line 2: is not JSON \('utf-8' codec can't decode"),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, sentence):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n' + line)
    with pytest.raises(ConfigError, match=rf"^data\.files: .*a\.jsonl, {sentence}"):
        list(read_jsonl(tmp_path / "a.jsonl", ["text"]))


def test_rows_of_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
    assert list(read_parquet(file, ["text"])) == [
        ({"text": "one"}, f"{file}, row 1"),
        ({"text": "two"}, f"{file}, row 2"),
    ]
    with pytest.raises(ConfigError, match=r"a\.parquet: has no column body; it has text, more\.$"):
        list(read_parquet(file, ["body"]))
    file.write_bytes(b"PAR1 and more")
    with pytest.raises(ConfigError, match=r"^data\.files: .*a\.parquet: cannot be read as Parquet"):
        list(read_parquet(file, ["text"]))


def test_rows_of_a_saved_dataset(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "both")
    folder = tmp_path / "both" / "train"
    assert list(read_saved(folder, ["text"])) == [
        ({"text": "one"}, f"{folder}, row 1"),
        ({"text": "two"}, f"{folder}, row 2"),
    ]
    with pytest.raises(ConfigError, match=r"both: has the splits train, test"):
        list(read_saved(tmp_path / "both", ["text"]))
    with pytest.raises(ConfigError, match=r"has no column body"):
        list(read_saved(folder, ["body"]))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty: is not a folder of save_to_disk"):
        list(read_saved(tmp_path / "empty", ["text"]))


@pytest.mark.parametrize(("read", "package"), [(read_parquet, "pyarrow"), (read_saved, "datasets")])
def test_without_the_package_it_says_how_to_install_it(read, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"pip install 'torch-launcher\[datasets\]'"):
        list(read(tmp_path, ["text"]))
