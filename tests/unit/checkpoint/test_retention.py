"""Which checkpoints are deleted once a newer one is durable."""

from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.checkpoint.retention import Retention

STEPS = st.integers(1, 12)
FEW_STEPS = st.frozensets(STEPS, max_size=2)


@settings(max_examples=60)
@given(
    steps=st.sets(STEPS, min_size=3),
    newest=st.integers(1, 13),
    keep_previous=st.integers(0, 14),
    keep_interval=st.sampled_from([0, 0, 0, 3, 4, 20]),
    keep_steps=FEW_STEPS,
    protected=FEW_STEPS,
)
def test_retention_keeps_the_newest_the_best_and_the_intervals(
    steps, newest, keep_previous, keep_interval, keep_steps, protected
):
    retention = Retention(keep_previous, keep_interval, keep_steps)
    removed = retention.to_remove(steps, newest, protected)
    for step in steps:
        newer_previous = sum(step < other < newest for other in steps)
        is_kept = (
            step >= newest
            or newer_previous < keep_previous
            or step in keep_steps | protected
            or (keep_interval > 0 and step % keep_interval == 0)
        )
        assert (step in removed) != is_kept, step
    assert removed == sorted(removed)
