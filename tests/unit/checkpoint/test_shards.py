import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from launcher.checkpoint.manifest import CorruptCheckpoint
from launcher.checkpoint.shards import DTYPES, ShardReader, why_not_stored, write_tensors
from launcher.strategies.base import Part


def test_any_safetensors_library_reads_it(tmp_path: Path) -> None:
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES if "float8" not in str(dtype)}
    tensors |= {"scalar": torch.tensor(1.5), "empty": torch.zeros(0, 4), "strided": torch.arange(12.0).reshape(3, 4).T}
    write_tensors(tmp_path / "x.safetensors", tensors)
    theirs, ours = load_file(tmp_path / "x.safetensors"), ShardReader([tmp_path / "x.safetensors"])
    assert set(theirs) == set(tensors) == set(ours.names())
    for name, tensor in tensors.items():
        assert torch.equal(theirs[name], tensor) and torch.equal(ours.read(name), tensor), name


def test_every_dtype_comes_back_or_is_refused(tmp_path: Path) -> None:
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    refused = {dtype for dtype in every if why_not_stored(torch.empty(2, dtype=dtype))}
    assert refused <= {d for d in every if re.search(r"torch\.(q?u?int[1-7]$|q)", str(d))}
    for dtype in every - refused:
        source = torch.empty(4, 3, dtype=dtype)
        source.view(torch.uint8).copy_(torch.arange(source.nbytes).view(4, -1) % 2)
        halves = dict(zip("ab", source.split(2), strict=True))
        for name, half in halves.items():
            write_tensors(tmp_path / name, {"w": half}, {"w": Part((4, 3), (0 if name == "a" else 2, 0))})
        reader = ShardReader([tmp_path / name for name in halves])
        assert (reader.shape("w"), reader.dtype("w")) == ((4, 3), dtype)
        assert torch.equal(reader.read("w").view(torch.uint8), source.view(torch.uint8)), dtype


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("readers", [1, 2, 3, 5])
def test_pieces_fit_any_other_cut(tmp_path: Path, world: int, readers: int) -> None:
    whole = torch.arange(7 * 4.0).reshape(7, 4)
    files = []
    for rank, piece in enumerate(whole.tensor_split(world)):
        offset = sum(len(p) for p in whole.tensor_split(world)[:rank])
        files.append(tmp_path / f"shard-{rank}.safetensors")
        write_tensors(files[-1], {"w": piece}, {"w": Part((7, 4), (offset, 0))})
    reader = ShardReader(files)
    assert reader.shape("w") == (7, 4) and torch.equal(reader.read("w"), whole)
    start = 0
    for wanted in whole.tensor_split(readers):
        target = torch.empty_like(wanted)
        reader.read_into("w", target, (start, 0))
        assert torch.equal(target, wanted)
        start += len(wanted)
    columns = torch.empty(7, 2)
    reader.read_into("w", columns, (0, 1))
    assert torch.equal(columns, whole[:, 1:3])


@pytest.mark.parametrize("cuts", [[], [5], [13, 15], [1, 10, 19]])
def test_runs_of_values_fit_any_other_cut(tmp_path: Path, cuts: list[int]) -> None:
    whole = torch.arange(7 * 4.0).reshape(7, 4)
    files = []
    for rank, (start, end) in enumerate(zip([0, *cuts], [*cuts, 28], strict=True)):
        files.append(tmp_path / f"shard-{rank}.safetensors")
        write_tensors(files[-1], {"w": whole.view(-1)[start:end]}, {"w": Part((7, 4), (start,))})
    reader = ShardReader(files)
    assert reader.shape("w") == (7, 4) and torch.equal(reader.read("w"), whole)
    for offset, expected in {(2, 0): whole[2:5], (0, 1): whole[:, 1:3], (9,): whole.view(-1)[9:20]}.items():
        target = torch.empty_like(expected)
        with reader.concurrent_reads():
            reader.read_into("w", target, offset)
        assert torch.equal(target, expected)


@pytest.mark.parametrize("dim", [0, 1])
def test_boxes_are_read_as_runs(tmp_path: Path, dim: int) -> None:
    whole = torch.arange(7 * 4.0).reshape(7, 4)
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for file, piece, start in zip(files, whole.split(3 if dim else 5, dim), (0, 3 if dim else 5), strict=True):
        write_tensors(file, {"w": piece}, {"w": Part((7, 4), (0, start) if dim else (start, 0))})
    target = torch.empty(17)
    ShardReader(files).read_into("w", target, (6,))
    assert torch.equal(target, whole.view(-1)[6:23])
    with pytest.raises(ValueError, match="hold"):
        ShardReader(files[:1]).read_into("w", target, (6,))


def test_a_missing_piece_is_an_error(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", {"w": torch.ones(2, 2)}, {"w": Part((4, 2), (0, 0))})
    with pytest.raises(ValueError, match="hold 4 of the 8"):
        ShardReader([tmp_path / "a.safetensors"]).read("w")


def test_a_flipped_byte_is_found_on_the_way(tmp_path: Path) -> None:
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
