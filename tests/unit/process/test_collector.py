import gc
import subprocess
import sys

from launcher.process import collector


def test_objects_of_a_pause_are_never_collected_and_a_program_s_own_choice_is_kept():
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


def test_the_end_of_a_process_looks_through_no_objects():
    code = """
import atexit, gc
atexit.register(lambda: print(len(gc.get_objects())))
from launcher.process import collector
collector.pause()
collector.resume()
made = [[] for _ in range(100_000)]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1000
