import gc

from launcher.process import collector


def test_a_pause_ends_and_a_program_s_own_choice_is_kept():
    frozen = gc.get_freeze_count()
    try:
        collector.pause()
        collector.pause()
        assert not gc.isenabled()
        collector.resume()
        assert gc.isenabled()
        # What is frozen would never be freed, and other libraries report that at the end.
        assert gc.get_freeze_count() <= frozen
        gc.disable()
        collector.pause()
        collector.resume()
        assert not gc.isenabled()
    finally:
        gc.enable()
