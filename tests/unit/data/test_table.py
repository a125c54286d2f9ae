"""data=table: what a table of numbers becomes, and what is rejected."""

from pathlib import Path

import numpy as np
import pytest
import torch

from launcher.data.table import TableData
from launcher.errors import ConfigError
from support.composition import composed, validate

COLUMNS = ["rooms", "area", "price"]
ROWS = [[index % 5, 10.5 * index, index % 3] for index in range(20)]


def write(folder: Path, rows: list[list[float]] = ROWS) -> Path:
    path = folder / "houses.csv"
    lines = [",".join(map(str, row)) for row in [COLUMNS, *rows]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return path


def source(files: Path | str, **more: object) -> TableData:
    settings = {"target": "price", "features": ["area", "rooms"], "batch_size": 4} | more
    made = TableData(files=str(files), **settings)  # type: ignore[arg-type]
    made.check()
    return made


def test_rows_and_their_share_that_is_held_out(tmp_path):
    made = source(write(tmp_path), num_features=2)
    train, val = made.train_dataset(), made.val_dataset()
    assert (len(train), len(val)) == (18, 2) and train.fingerprint != val.fingerprint
    inputs, targets = val.get_batch(np.arange(2))
    assert torch.equal(inputs, torch.tensor([[94.5, 4.0], [199.5, 4.0]]))
    assert torch.equal(targets, torch.tensor([[0.0], [1.0]]))
    assert source(tmp_path / "*", num_classes=3).train_dataset()[1][1].dtype == torch.int64
    assert source(tmp_path / "*", val_fraction=0.0).val_dataset() is None
    other = source(tmp_path / "*", val_files=str(tmp_path / "*"))
    assert len(other.train_dataset()) == len(other.val_dataset()) == 20


MISTAKES = {
    "no value": ([[1, "", 2]], {}, "line 2: area is '', not a finite number."),
    "infinite": ([[1, "inf", 2]], {}, "line 2: area is 'inf'"),
    "a short row": ([[1]], {}, "line 2: area is None"),
    "no row": ([], {}, "the files have no rows."),
    "no such column": (ROWS, {"target": "prize"}, "no column prize; it has rooms, area, price."),
    "a class": (ROWS, {"num_classes": 2}, "data.target=price: has the value 2, not"),
    "the target": (ROWS, {"features": ["price"]}, "columns other than price."),
    "no features": (ROWS, {"features": []}, "should name columns"),
    "a number of features": (ROWS, {"num_features": 3}, "is the number of data.features, 2"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_name_the_place(tmp_path, mistake):
    rows, settings, said = MISTAKES[mistake]
    path = write(tmp_path, rows)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as error:
        source(path, **settings).train_dataset()
    assert said in str(error.value)


def test_features_that_are_not_named_are_one_sentence():
    words = ["data=table", "data.target=a", "model=mlp", "data.num_classes=2"]
    config = composed([f"data.files='{__file__}'", *words])
    with pytest.raises(ConfigError) as error:
        validate(config)
    (sentence,) = error.value.messages
    assert sentence.startswith("data.features: needs a value")
