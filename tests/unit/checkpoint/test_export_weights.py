"""An export is a file that any safetensors library reads."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from launcher.checkpoint.export_weights import write_model
from launcher.checkpoint.shards import DTYPES, ShardReader, why_not_stored
from launcher.errors import ConfigError

EVERY = sorted(
    {
        dtype
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype) and why_not_stored(torch.empty(2, dtype=dtype)) is None
    },
    key=str,
)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_each_dtype_is_read_as_it_was_or_rejected_by_name(dtype, tmp_path):
    tensor = torch.empty(3, 2, dtype=dtype)
    if dtype not in DTYPES:
        name = str(dtype).removeprefix("torch.")
        with pytest.raises(ConfigError, match=f"export: the tensor c is {name}, which"):
            write_model(tmp_path, {}, {"c": tensor})
        assert not list(tmp_path.iterdir())
        return

    file, _ = write_model(tmp_path, {}, {"c": tensor})

    read = load_file(file)["c"]
    assert (read.dtype, read.shape) == (dtype, tensor.shape)
    assert torch.equal(read.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_files_of_other_programs_are_read(dtype, tmp_path):
    tensor = torch.empty(3, 2, dtype=dtype)
    save_file({"c": tensor}, tmp_path / "other.safetensors")

    reader = ShardReader([tmp_path / "other.safetensors"])

    assert (reader.shape("c"), reader.dtype("c")) == ((3, 2), dtype)
    assert torch.equal(reader.read("c").view(torch.uint8), tensor.view(torch.uint8))
