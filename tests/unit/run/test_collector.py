import gc

import pytest

from launcher.run import collector


@pytest.fixture(autouse=True)
def usual():
    threshold = gc.get_threshold()
    yield threshold
    collector.resume()
    gc.set_threshold(*threshold)
    gc.unfreeze()


def test_nothing_is_collected_between_the_start_and_the_training(usual):
    collector.defer()
    collector.defer()  # a rank's process has been told twice
    before = gc.get_stats()[0]["collections"]
    kept = [[] for _ in range(100 * usual[0])]
    assert gc.get_stats()[0]["collections"] == before
    collector.resume()
    assert gc.get_threshold() == usual
    kept += [[] for _ in range(100 * usual[0])]
    assert gc.get_stats()[0]["collections"] > before


def test_a_threshold_that_someone_else_has_set_is_kept():
    collector.defer()
    gc.set_threshold(5000, 20, 30)
    collector.resume()
    assert gc.get_threshold() == (5000, 20, 30)


def test_a_trainer_that_cannot_be_built_leaves_the_collector_as_it_was(usual):
    collector.defer()
    with pytest.raises(RuntimeError), collector.building():
        assert gc.get_freeze_count() > 0
        raise RuntimeError
    assert gc.get_threshold() == usual
    gc.unfreeze()
    collector.freeze()
    assert gc.get_freeze_count() == 0, "the user's parts may have files to close"


def test_only_what_exists_before_the_training_is_passed_over():
    frozen = gc.get_freeze_count()
    collector.freeze()
    assert gc.get_freeze_count() == frozen, "no command of ours has begun in this process"
    collector.defer()
    collector.freeze()
    assert gc.get_freeze_count() > frozen
    gc.unfreeze()
    collector.resume()
    collector.freeze()
    assert gc.get_freeze_count() == 0
