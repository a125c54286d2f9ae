import re
from contextlib import nullcontext
from itertools import pairwise
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from launcher.checkpoint.manifest import CorruptCheckpoint
from launcher.checkpoint.shards import DTYPES, ShardReader, why_not_stored, write_tensors
from launcher.strategies.base import ShardSpec


def test_any_safetensors_library_reads_it(tmp_path):
    tensors = {
        str(dtype): torch.arange(6).reshape(2, 3).to(dtype)
        for dtype in DTYPES
        if "float8" not in str(dtype)
    }
    tensors |= {
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 4),
        "strided": torch.arange(12.0).reshape(3, 4).T,
    }
    write_tensors(tmp_path / "x.safetensors", tensors)
    file = tmp_path / "x.safetensors"
    assert int.from_bytes(file.read_bytes()[:8], "little") % 8 == 0, "the data are aligned"
    theirs, ours = load_file(file), ShardReader([file])
    assert set(theirs) == set(tensors) == set(ours.names())
    for name, tensor in tensors.items():
        assert torch.equal(theirs[name], tensor) and torch.equal(ours.read(name), tensor), name


def test_every_dtype_comes_back_or_is_rejected(tmp_path):
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    rejected = {dtype for dtype in every if why_not_stored(torch.empty(2, dtype=dtype))}
    assert rejected <= {d for d in every if re.search(r"torch\.(q?u?int[1-7]$|q)", str(d))}
    for dtype in every - rejected:
        source = torch.empty(4, 3, dtype=dtype)
        source.view(torch.uint8).copy_(torch.arange(source.nbytes).view(4, -1) % 2)
        halves = dict(zip("ab", source.split(2), strict=True))
        for (name, half), start in zip(halves.items(), (0, 2), strict=True):
            write_tensors(tmp_path / name, {"w": half}, {"w": ShardSpec((4, 3), (start, 0))})
        reader = ShardReader([tmp_path / name for name in halves])
        assert (reader.shape("w"), reader.dtype("w")) == ((4, 3), dtype)
        assert torch.equal(reader.read("w").view(torch.uint8), source.view(torch.uint8)), dtype


@st.composite
def regions(draw: st.DrawFn, whole: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    """An offset, and the slices of a box of a tensor of this shape, or of a run of its values."""
    sizes = whole if draw(st.booleans()) else (prod(whole),)
    starts = tuple(draw(st.integers(0, size)) for size in sizes)
    ends = (draw(st.integers(start, size)) for start, size in zip(starts, sizes, strict=True))
    return starts, tuple(slice(start, end) for start, end in zip(starts, ends, strict=True))


def cut(whole: torch.Tensor, slices: tuple[slice, ...]) -> torch.Tensor:
    return (whole if len(slices) == whole.dim() else whole.reshape(-1))[slices]


@settings(deadline=None, max_examples=40)
@given(st.data(), st.lists(st.integers(1, 5), max_size=3).map(tuple), st.booleans(), st.booleans())
def test_any_cut_fits_any_other(tmp_path_factory, data, shape, are_verified, is_concurrent):
    """Pieces are boxes along one dimension or runs, in a file each; any box or run is read, into
    any memory layout."""
    dtype = data.draw(st.sampled_from([torch.float32, torch.int64, torch.bfloat16]))
    whole = torch.arange(prod(shape)).to(dtype).reshape(shape)
    dim = data.draw(st.integers(-1, len(shape) - 1))  # -1: runs
    size = prod(shape) if dim < 0 else shape[dim]
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, size), max_size=2))), size]
    folder, files, entries = tmp_path_factory.mktemp("shards"), [], {}
    for rank, (start, end) in enumerate(pairwise(cuts)):
        offset = (start,) if dim < 0 else tuple(start if i == dim else 0 for i in range(len(shape)))
        piece = whole.reshape(-1)[start:end] if dim < 0 else whole.narrow(dim, start, end - start)
        files.append(folder / str(rank))
        # what lies before and behind it in the file must not be read
        tensors = {
            "before": torch.tensor([7], dtype=dtype),
            "w": piece,
            "behind": torch.tensor([7], dtype=dtype),
        }
        entries[str(rank)] = write_tensors(files[-1], tensors, {"w": ShardSpec(shape, offset)})
    reader = ShardReader(files, entries=entries if are_verified else None)
    assert torch.equal(reader.read("w"), whole)
    targets = []
    with reader.concurrent_reads() if is_concurrent else nullcontext():
        for offset, slices in data.draw(st.lists(regions(shape), max_size=3)):
            expected = cut(whole, slices)
            other = data.draw(st.sampled_from([dtype, torch.float64]))
            memory = torch.empty([n + 1 for n in expected.shape] + [2], dtype=other)
            target = memory[(*map(slice, expected.shape), 0)]
            target = target if data.draw(st.booleans()) else target.contiguous()
            reader.read_into("w", target, offset)
            targets.append((target, expected))
    assert all(torch.equal(target.to(dtype), expected) for target, expected in targets)


def test_a_missing_piece_is_an_error(tmp_path):
    whole = {"w": ShardSpec((4, 2), (0, 0))}
    write_tensors(tmp_path / "a.safetensors", {"w": torch.ones(2, 2)}, whole)
    reader = ShardReader([tmp_path / "a.safetensors"])
    with pytest.raises(ValueError, match="hold 4 of the 8"):
        reader.read("w")
    with pytest.raises(ValueError, match="hold 4 of the 8"):
        reader.read_into("w", torch.empty(8).view(4, 2).T.contiguous().T, (0, 0))
    write_tensors(tmp_path / "b.safetensors", {"w": torch.ones(4, 1)}, whole)
    with pytest.raises(ValueError, match="hold 4 of the 8"):  # a column is no run
        ShardReader([tmp_path / "b.safetensors"]).read_into("w", torch.empty(6), (0,))
    with pytest.raises(ValueError, match="hold 4 of the 8"):
        reader.read_into("w", torch.empty(6), (0,))


def test_a_flipped_byte_is_found_on_the_way(tmp_path):
    """Whole tensors, parts of them, and the header; what is not read is not looked at."""
    file = tmp_path / "shard-00000.safetensors"
    entry = write_tensors(file, {"a": torch.arange(6.0).reshape(3, 2), "b": torch.ones(4)})
    good = file.read_bytes()

    def reader() -> ShardReader:
        return ShardReader([file], entries={file.name: entry})

    file.write_bytes(good[:-1] + b"x")
    assert torch.equal(reader().read("a"), torch.arange(6.0).reshape(3, 2))
    with pytest.raises(CorruptCheckpoint, match="checksum"):
        reader().read("b")
    file.write_bytes(good[:-40] + b"x" + good[-39:])
    with pytest.raises(CorruptCheckpoint, match="checksum"):
        reader().read_into("a", torch.empty(1, 2), (2, 0))
    file.write_bytes(good[:20] + b"x" + good[21:])
    with pytest.raises(CorruptCheckpoint, match="checksum"):
        reader()
