"""A mean over samples is one number, for batches of any form and size, on any number of ranks."""

import pytest
import torch

from support.collates import COLLATES, SIZE, SIZES, MeanModel, Sequences, plain
from support.ranks import in_turn

# Some rank would have no batch.
CASES = [(kind, size) for kind in COLLATES for size in SIZES]
COUNTS = {count: [case for case in CASES if case[1] * count <= SIZE] for count in (1, 2)}


@pytest.fixture(scope="module")
def means(tmp_path_factory):
    """The means of each rank, by number of ranks, form and size of the batches."""
    phases = [
        (count, [("collated_means", {"kind": kind, "size": size}) for kind, size in cases])
        for count, cases in COUNTS.items()
    ]
    results = in_turn(tmp_path_factory.mktemp("means"), phases)
    return {
        (count, *case): of_ranks
        for count, of_count in zip(COUNTS, results, strict=True)
        for case, of_ranks in zip(COUNTS[count], of_count, strict=True)
    }


@pytest.mark.parametrize(
    ("count", "kind", "size"), [(count, *case) for count, cases in COUNTS.items() for case in cases]
)
def test_every_sample_counts_once(means, count, kind, size):
    with torch.no_grad():
        loss, records = MeanModel()(plain([Sequences()[index] for index in range(SIZE)]))
    expected = {"loss": float(loss), "error": float(records["error"])}
    for of_rank in means[count, kind, size]:
        assert {"ours", "our stream", "batch sampler"} <= of_rank.keys()
        for name, values in of_rank.items():
            assert values == pytest.approx(expected, rel=1e-6), name
