"""The notation of `dispatch.nodes`."""

import pytest

from launcher.config.schema.node_range import NodeRange


@pytest.mark.parametrize(("nodes", "ends"), [
    (1, (1, 1)), (4, (4, 4)), ("1-4", (1, 4)), ("2-2", (2, 2)), ("10-12", (10, 12)),
])  # fmt: skip
def test_a_number_or_the_least_and_the_most(nodes, ends):
    parsed = NodeRange.parse(nodes)
    assert parsed == NodeRange(*ends) and NodeRange.parse(str(parsed)) in (parsed, None)
    assert list(parsed.counts) == [*range(ends[0], ends[1] + 1)]
    assert parsed.is_open == (ends[0] < ends[1]) == ("-" in str(parsed))


@pytest.mark.parametrize("nodes", ["4", "4-1", "0-4", 0, "1-", "1-4,6", True, None, 2.0])
def test_everything_else_is_no_range(nodes):
    assert NodeRange.parse(nodes) is None
