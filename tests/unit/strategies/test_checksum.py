"""Checksums of tensors: each bit counts."""

import itertools

import pytest
import torch

from launcher.strategies.checksum import CHUNK, checksum


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        *itertools.product([torch.float32, torch.bfloat16, torch.int64, torch.uint8], [1, 5]),
        (torch.float32, CHUNK + 3),
    ],
)
def test_a_checksum_changes_with_each_bit_and_not_with_the_order_of_additions(dtype, size):
    values = torch.arange(size).to(dtype)
    before = int(checksum([values]))
    assert int(checksum([values.clone()])) == before
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[
        values.element_size()
    ]
    for place in {0, size // 2, size - 1}:
        for bit in range(8 * values.element_size() - 1) if size < CHUNK else (0, 30):
            changed = values.clone()
            changed.view(integers)[place] ^= 1 << bit
            assert int(checksum([changed])) != before
    if size > 1:
        assert int(checksum([values.flip(0)])) != before


def test_checksums_tell_tensors_apart_and_take_complex_and_empty_ones():
    one, other = torch.ones(3), torch.arange(3.0)
    assert int(checksum([one, other])) != int(checksum([other, one]))
    assert int(checksum([torch.zeros(0)])) == int(checksum([])) == 0
    assert int(checksum([torch.tensor([1 + 2j])])) != int(checksum([torch.tensor([1 - 2j])]))
