"""Documents of each kind of file: what is made of them, resumed, shared by ranks, and rejected."""

import json
import shutil
from importlib.util import find_spec

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from launcher.errors import ConfigError
from support.batches import take
from support.broken_disk import room_for
from support.paths import ROOT
from support.tokenizer import SIZE, write_tokenizer

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")

RECORDS = [{"text": f"option number {i} " * (i % 5 + 1), "kind": i % 3} for i in range(60)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents")
    write_tokenizer(folder / "tokenizer")
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return folder


def make_source(folder, kind="jsonl", name="a.jsonl", **options):
    node = OmegaConf.load(ROOT / "conf" / "data" / f"{kind}.yaml")
    node.update(
        batch_size=8, files=str(folder / name), tokenizer=str(folder / "tokenizer"), seq_len=24
    )
    node.update({"cache": str(folder / "cache"), **options})
    return instantiate(node)


def test_rows_of_parquet_give_the_same_samples(files):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(RECORDS), files / "a.parquet")
    lines, rows = make_source(files), make_source(files, "parquet", "a.parquet")
    for part in ("train_dataset", "val_dataset"):
        first, other = (getattr(source, part)() for source in (lines, rows))
        assert len(first) and other.fingerprint == first.fingerprint


def test_tokens_are_made_once(files, tmp_path, monkeypatch):
    make_source(files, cache=str(tmp_path)).train_dataset()
    monkeypatch.setattr("launcher.data.documents.write_store", None)
    source = make_source(files, cache=str(tmp_path), pack=False)
    assert len(source.train_dataset()) + len(source.val_dataset()) == len(RECORDS)


def test_tokens_for_which_there_is_no_room_are_rejected(files, tmp_path):
    with room_for(500), pytest.raises(OSError, match="File too large"):
        make_source(files, cache=str(tmp_path)).train_dataset()
    assert not list(tmp_path.iterdir())
    assert len(make_source(files, cache=str(tmp_path)).train_dataset())


def test_classes(files):
    source = make_source(files, label_field="kind", num_classes=3)
    batch = take(source.train_loader(seed=0), 1)[0]
    assert set(batch) == {"input_ids", "attention_mask", "labels"} and batch["labels"].shape == (8,)


def test_documents_that_are_too_long_are_reported(files, caplog):
    make_source(files, seq_len=4, pack=False).train_dataset()
    assert "57 of 57 documents are longer than data.seq_len=4 and are cut" in caplog.text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"files": "nowhere.jsonl"}, r"^data\.files='nowhere\.jsonl': matches no file"),
        ({"val_files": "nowhere.jsonl"}, r"^data\.val_files='nowhere\.jsonl': matches no file"),
        ({"tokenizer": "nowhere"}, r"^data\.tokenizer=nowhere: has no tokenizer"),
        ({"label_field": "kind"}, r"^data\.label_field=kind: needs data\.num_classes"),
        ({"text_field": "body"}, r"^data\.text_field=body: .*a\.jsonl, line 1: "),
        ({"vocab_size": 9}, rf"^data\.vocab_size=9: .* set data\.vocab_size={SIZE} or more"),
        ({"prompt_field": "a", "messages_field": "b"}, r"^data\.messages_field: data\.prompt_f"),
        ({"val_fraction": 0.001, "pack": False}, None),
    ],
)
def test_bad_options(files, options, sentence):
    source = make_source(files, **options)
    if sentence is None:
        assert len(source.train_dataset()) == 60
        with pytest.raises(ConfigError, match=r"^data\.files: .* too few to hold any out"):
            source.val_dataset()
        return
    with pytest.raises(ConfigError, match=sentence):
        source.check()
        source.train_dataset()


def test_an_empty_file_is_named_and_nothing_stays(files, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    both = [str(files / "a.jsonl"), str(tmp_path / "empty.jsonl")]
    with pytest.raises(ConfigError, match=r"^data\.files: .*empty\.jsonl: is empty"):
        make_source(files, files=both, cache=str(tmp_path / "cache")).train_dataset()
    assert not list((tmp_path / "cache").iterdir())


def test_changed_files_and_tokenizers_are_tokenized_again(files, tmp_path):
    shutil.copytree(files / "tokenizer", tmp_path / "tokenizer")
    shutil.copy(files / "a.jsonl", tmp_path)
    before = make_source(tmp_path).train_dataset().fingerprint
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('{"text": "one more"}\n')
    after = make_source(tmp_path).train_dataset().fingerprint
    assert before != after
    (tmp_path / "tokenizer" / "chat_template.jinja").unlink()
    make_source(tmp_path).train_dataset()
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_new_documents_are_a_row_each_and_have_no_class(files, tmp_path):
    """Data for predictions, packed or not, with a class in the training data or not."""
    new = tmp_path / "new.jsonl"
    new.write_text("".join(json.dumps({"text": record["text"]}) + "\n" for record in RECORDS[:9]))
    options = {"predict": str(new), "cache": str(tmp_path / "cache")}
    language = make_source(files, **options).predict_dataset()
    classes = make_source(files, label_field="kind", num_classes=3, **options).predict_dataset()
    assert len(language) == len(classes) == 9 and language.has_targets and not classes.has_targets
    assert language[3]["labels"].tolist() == language[3]["input_ids"].tolist()
    assert [int(classes[index]["labels"]) for index in range(9)] == [-100] * 9
    # The training files are elsewhere, and need not exist.
    gone = make_source(files, name="gone.jsonl", **options)
    gone.check()
    assert gone.predict_dataset().fingerprint == language.fingerprint
    assert make_source(files).predict_dataset() is None
