import gc

from launcher.process import collector


def test_objects_of_a_pause_are_never_collected_and_a_program_s_own_choice_is_kept() -> None:
    try:
        collector.pause()
        collector.pause()
        assert not gc.isenabled()
        collector.resume()
        assert gc.isenabled() and (frozen := gc.get_freeze_count()) > 0
        collector.resume()
        # Frozen objects may die.
        assert gc.get_freeze_count() <= frozen, "what was built since may have files to close"
        gc.disable()
        collector.pause()
        collector.resume()
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()
