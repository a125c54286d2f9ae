"""The copy of the state that is written while training changes its own."""

import torch

from launcher.checkpoint.host import HostBuffers


def test_a_copy_is_of_its_moment() -> None:
    tensors = {
        "a": torch.ones(3),
        "strided": torch.arange(6.0).reshape(2, 3).T,
        "scalar": torch.tensor(1),
    }
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    copies = HostBuffers().copy(tensors)
    for tensor in tensors.values():
        tensor.zero_()
    assert all(torch.equal(copies[name], expected[name]) for name in tensors)


def test_buffers_are_used_again_where_they_fit() -> None:
    buffers = HostBuffers()
    first = buffers.copy({"a": torch.ones(3), "b": torch.ones(2)})
    pointers = {name: tensor.data_ptr() for name, tensor in first.items()}
    second = buffers.copy({"a": torch.zeros(3), "b": torch.zeros(4)})
    assert second["a"].data_ptr() == pointers["a"] and second["b"].shape == (4,)
    third = buffers.copy({"a": torch.zeros(3, dtype=torch.int64)})
    assert third["a"].dtype == torch.int64


def test_what_was_allocated_before_is_used_by_the_first_copy() -> None:
    tensors = {"a": torch.ones(3), "b": torch.ones(2, dtype=torch.int64)}
    buffers = HostBuffers()
    buffers.allocate(tensors)
    copies = buffers.copy(tensors)
    assert all(torch.equal(copies[name], tensor) for name, tensor in tensors.items())
    buffers = HostBuffers()
    buffers.allocate({"a": torch.empty(5)})
    assert torch.equal(buffers.copy(tensors)["a"], tensors["a"])
