"""The copy of the state that is written while training changes its own."""

import torch

from launcher.checkpoint.host import HostBuffers


def test_a_copy_is_of_its_moment_in_buffers_that_are_used_again():
    buffers = HostBuffers()
    tensors = {
        "a": torch.ones(3),
        "strided": torch.arange(6.0).reshape(2, 3).T,
        "scalar": torch.tensor(1),
    }
    buffers.allocate({"f": {**tensors, "scalar": torch.empty(5)}})
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    first = buffers.copy({"f": tensors})["f"]
    for tensor in tensors.values():
        tensor.zero_()
    assert all(torch.equal(first[name], expected[name]) for name in tensors)
    tensors["scalar"] = torch.zeros(4, dtype=torch.int64)
    second = buffers.copy({"f": tensors})["f"]
    assert second["a"].data_ptr() == first["a"].data_ptr()
    assert second["scalar"].shape == (4,) and second["scalar"].dtype == torch.int64
