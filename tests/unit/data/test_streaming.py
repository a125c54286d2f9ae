"""Documents in blocks: their index, their order, and what training reads of them."""

import json
import signal
import threading
import tracemalloc
from importlib.util import find_spec
from itertools import chain, pairwise

import numpy as np
import pytest
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.data.block_cache import BlockCache, lock_file
from launcher.data.block_order import BlockOrder
from launcher.data.blocks import BlockIndex, Files, index, line_ranges
from launcher.data.encoding import Document
from launcher.data.loader import ResumableLoader
from launcher.data.streaming import StreamedDocuments
from launcher.errors import ConfigError
from launcher.process import signals
from support.batches import same, take
from support.paths import ROOT
from support.tokenizer import write_tokenizer

pytestmark = pytest.mark.skipif(find_spec("fsspec") is None, reason="needs fsspec")
needs_tokenizer = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@given(SIZES, st.integers(0, 3), st.booleans(), st.integers(1, 5), st.data())
def test_order_is_a_permutation_in_each_epoch_and_any_position_is_computed_alone(
    sizes, seed, shuffle, window, data
):
    order = BlockOrder(np.array(sizes), seed, shuffle, window)
    size = sum(sizes)
    whole = order.indices(0, 3 * size)
    for epoch in range(3):
        assert sorted(whole[epoch * size : (epoch + 1) * size]) == list(range(size))
    start = data.draw(st.integers(0, 2 * size))
    count = data.draw(st.integers(1, size))
    fresh = BlockOrder(np.array(sizes), seed, shuffle, window)
    assert fresh.indices(start, count).tolist() == whole[start : start + count].tolist()


@given(SIZES, st.integers(1, 5), st.data())
def test_samples_of_a_position_are_in_the_blocks_of_its_window(sizes, window, data):
    order = BlockOrder(np.array(sizes), 0, True, window)
    position = data.draw(st.integers(0, 2 * sum(sizes) - 1))
    block = np.searchsorted(order.starts, order.indices(position, 1)[0], side="right") - 1
    assert block in order.blocks_of(*order.window_at(position))


class Simulated:
    """A cache over an index of blocks that exist nowhere, which notes what is read."""

    def __init__(self, index):
        self.index, self.read = index, []

    def records(self, block):
        self.read.append(block)
        return [block * 1000 + number for number in range(1000)]


def test_a_resume_within_10_to_the_8_rows_reads_a_few_blocks(tmp_path):
    """The index has 10^5 blocks; the encoder alone is not the real one."""
    count, world_size = 10**5, 3
    blocks = np.arange(count, dtype=np.int64)
    rows = np.full(count, 1000)
    BlockIndex(["a.jsonl"], 0 * blocks, blocks, blocks + 1, rows, ["1"]).save(tmp_path / "i.npz")
    read, taken = [], []
    for rank in range(world_size):
        tracemalloc.start()
        cache = Simulated(BlockIndex.load(tmp_path / "i.npz"))
        encode = lambda record, _: Document(np.array([record]))  # noqa: E731
        encode.pad = 0
        dataset = StreamedDocuments(cache, encode, 8, 4, "none")
        loader = ResumableLoader(
            dataset, seed=5, micro_batch_size=60 // world_size, rank=rank, world_size=world_size
        )
        # The third step ends the first epoch, and begins the second.
        loader.load_state_dict({"samples": 10**8 - 150, "dataset": dataset.fingerprint})
        batches = take(loader, 5)
        taken.append([batch["input_ids"][:, 0].tolist() for batch in batches])
        assert loader.samples == 10**8 + 150
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100e6
        for block in cache.read:
            assert cache.read.count(block) == 1
        # Of the window that was being read, and of the two that follow.
        read.append(set(cache.read))
        assert len(read[-1]) <= 4 * 3
    # How many of them were read ahead differs, since a block that is not needed is not awaited.
    assert len(set().union(*read)) <= 4 * 3
    steps = [[row for part in parts for row in part] for parts in zip(*taken, strict=True)]
    ends = [steps[0] + steps[1] + steps[2][:30], steps[2][30:] + steps[3] + steps[4]]
    assert [len(set(rows)) for rows in ends] == [150, 150]
    order = BlockOrder(rows, 5, True, 4)
    assert list(chain(*steps)) == order.indices(10**8 - 150, 300).tolist()


@given(
    st.lists(st.sampled_from(["{}", "", '{"text": "a"}', " ", '{"text": "' + "b" * 30 + '"}'])),
    st.integers(1, 60),
    st.integers(1, 50),
    st.booleans(),
)
def test_blocks_of_lines_have_each_record_once(lines, block_bytes, read, ends_with_newline):
    text = "\n".join(lines) + ("\n" if ends_with_newline else "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("launcher.data.blocks.READ_BYTES", read)
        ranges = list(line_ranges(InMemory(text.encode()), "a", block_bytes))
    for (_, stop, _), (start, _, _) in pairwise(ranges):
        assert stop == start
    blocks = [text.encode()[start:stop].split(b"\n") for start, stop, _ in ranges]
    records = [[line for line in block if line.strip()] for block in blocks]
    assert [len(each) for each in records] == [rows for _, _, rows in ranges]
    expected = [line for line in lines if line.strip()]
    assert [line.decode() for each in records for line in each] == expected
    assert all(stop - start >= block_bytes for start, stop, _ in ranges[:-1])


class InMemory:
    """The methods of `Files` that an index of lines needs."""

    def __init__(self, data):
        self.data = data

    def size(self, path):
        return len(self.data)

    def bytes_of(self, path, start, stop):
        return self.data[start:stop]


RECORDS = [{"text": f"option number {i} " * (i % 5 + 1), "kind": i % 3} for i in range(60)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streaming")
    write_tokenizer(folder / "tokenizer")
    for name, part in (("a", RECORDS[:25]), ("b", RECORDS[25:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in part))
    return folder


def make_source(folder, cache, kind="streaming", **options):
    node = OmegaConf.load(ROOT / "conf" / "data" / f"{kind}.yaml")
    node.update(batch_size=8, files=f"{folder}/*.jsonl", tokenizer=str(folder / "tokenizer"))
    node.update(seq_len=24, cache=str(cache), **options)
    source = instantiate(node)
    source.check()
    return source


@needs_tokenizer
@pytest.mark.parametrize("fields", [{}, {"label_field": "kind", "num_classes": 3}])
def test_samples_equal_those_of_tokenized_documents(files, tmp_path, fields):
    streamed = make_source(files, tmp_path / "b", block_bytes=200, shuffle=False, **fields)
    tokenized = make_source(
        files, tmp_path / "t", "jsonl", pack=False, val_fraction=0, shuffle=False, **fields
    )
    ours, theirs = (take(source.train_loader(seed=0), 10) for source in (streamed, tokenized))
    assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))


@needs_tokenizer
def test_parquet_and_lines_have_the_same_samples(files, tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.Table.from_pylist(RECORDS)
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    rows = make_source(files, tmp_path / "c", block_bytes=300)
    lines = rows.train_dataset()
    rows.files = str(tmp_path / "*.parquet")
    groups = rows.train_dataset()
    assert groups.cache.index.rows.tolist() == [7] * 8 + [4]
    assert len(lines) == len(groups) == 60
    assert all(same(lines[index], groups[index]) for index in range(60))


@needs_tokenizer
def test_cache_stays_below_its_size_and_a_second_reader_fetches_nothing(files, tmp_path):
    source = make_source(files, tmp_path / "c", block_bytes=150, cache_size="1000")
    dataset = source.train_dataset()
    for index_of in range(60):
        dataset[index_of]
        # No block is written or deleted by a thread meanwhile.
        with lock_file(tmp_path / "c" / "room.lock"):
            blocks = list((tmp_path / "c").glob("*.block"))
            assert blocks and sum(block.stat().st_size for block in blocks) <= 1000
    larger = make_source(files, tmp_path / "c", block_bytes=150).train_dataset()
    expected = [larger[number] for number in range(60)]
    again = make_source(files, tmp_path / "c", block_bytes=150).train_dataset()
    again.cache.files.bytes_of = None
    assert all(same(again[number], expected[number]) for number in range(60))


def test_reads_are_retried_with_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    files = Files("data.files", str(tmp_path / "*.jsonl"), retries=2, options={})
    tries = []

    def fail():
        tries.append(1)
        if len(tries) < 3:
            raise OSError("connection reset")
        return 5

    assert files.retry(fail, "a") == 5
    with pytest.raises(ConfigError, match=r"data.files: a: cannot be read in 3 attempts \(gone\)"):
        files.retry(lambda: (_ for _ in ()).throw(OSError("gone")), "a")


def test_changed_file_is_rejected(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"}\n')
    files = Files("data.files", str(path), retries=0, options={})
    blocks = index(files, files.find(), 1000)
    path.write_text('{"text": "abcdefgh  "}\n     \n')
    cache = BlockCache(files, blocks, ["text"], tmp_path / "cache", 1000)
    with pytest.raises(ConfigError, match="has changed since it was indexed"):
        cache.records(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"files": "FOLDER/none*.jsonl"}, "names no file"),
        ({"files": "FOLDER/tokenizer/*.json"}, "should end in .jsonl or .parquet"),
        ({"files": "nothing://a/b.jsonl"}, "Protocol not known: nothing"),
        ({"files": []}, "names no file"),
        ({"files": ["FOLDER/a.jsonl", "memory://b.jsonl"]}, "is in another store"),
        ({"num_workers": 1}, "data.num_workers=1"),
        ({"cache_size": "much"}, "data.cache_size=much: is not an amount"),
        ({"vocab_size": 5}, "data.vocab_size=5"),
    ],
)
@needs_tokenizer
def test_bad_options_are_rejected(files, tmp_path, options, message):
    options = json.loads(json.dumps(options).replace("FOLDER", str(files)))
    with pytest.raises(ConfigError) as error:
        make_source(files, tmp_path, **options).train_dataset()
    assert message in str(error.value)


@needs_tokenizer
def test_signal_does_not_end_the_wait_for_a_block_without_saving(files, tmp_path, monkeypatch):
    dataset = make_source(files, tmp_path / "c").train_dataset()
    fetch, is_released = dataset.cache.records, threading.Event()
    dataset.cache.records = lambda block: is_released.wait(60) and fetch(block)
    monkeypatch.setattr(signals._state, "received", signal.SIGTERM)
    release = threading.Timer(1.0, is_released.set)
    release.start()
    assert len(dataset[0]["input_ids"]) > 0
    release.join()
