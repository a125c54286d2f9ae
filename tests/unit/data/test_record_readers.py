import json
import sys

import pytest

from launcher.data.record_readers import read_jsonl, read_parquet
from launcher.errors import ConfigError

KEY = "data.files"
ROWS = [{"text": "one", "more": 1}, {"text": "two", "more": 2}]


def test_lines_of_json(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("\n\n".join(map(json.dumps, ROWS)))
    assert list(read_jsonl(file, ["text"], KEY)) == [
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
        list(read_jsonl(tmp_path / "a.jsonl", ["text"], KEY))


def test_rows_of_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
    assert list(read_parquet(file, ["text"], KEY)) == [
        ({"text": "one"}, f"{file}, row 1"),
        ({"text": "two"}, f"{file}, row 2"),
    ]
    with pytest.raises(ConfigError, match=r"a\.parquet: has no column body; it has text, more\.$"):
        list(read_parquet(file, ["body"], KEY))
    file.write_bytes(b"PAR1 and more")
    with pytest.raises(ConfigError, match=r"^data\.files: .*a\.parquet: cannot be read as Parquet"):
        list(read_parquet(file, ["text"], KEY))


def test_without_pyarrow_it_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'torch-launcher\[documents\]'"):
        list(read_parquet(tmp_path, ["text"], KEY))
