"""The notation of `dispatch.nodes`."""

import pytest

from launcher.config.node_range import NodeRange


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (1, (1, 1)),
        (4, (4, 4)),
        ("4", None),
        ("1-4", (1, 4)),
        ("2-2", (2, 2)),
        ("10-12", (10, 12)),
        ("4-1", None),
        ("0-4", None),
        (0, None),
        ("1-", None),
        ("1-4,6", None),
        (True, None),
        (None, None),
        (2.0, None),
    ],
)
def test_a_number_or_the_least_and_the_most(
    nodes: object, expected: tuple[int, int] | None
) -> None:
    parsed = NodeRange.parse(nodes)
    assert (parsed and (parsed.min, parsed.max)) == expected


def test_node_range_is_written_as_sbatch_takes_it() -> None:
    assert [str(NodeRange(*ends)) for ends in ((1, 4), (2, 2))] == ["1-4", "2"]
    assert [NodeRange(*ends).is_open for ends in ((1, 4), (2, 2))] == [True, False]
    assert list(NodeRange(2, 4).counts) == [2, 3, 4]
