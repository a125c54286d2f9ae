"""Files are written, hashed and fsynced in one go, and hashed again to compare."""

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.checkpoint.durable_files import hash_file, write_file


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=50), max_size=6), st.data())
def test_a_written_file_has_its_entry_and_any_other_byte_is_noticed(tmp_path_factory, pieces, data):
    path = tmp_path_factory.mktemp("files") / "x"
    entry = write_file(path, pieces)
    assert path.read_bytes() == b"".join(pieces)
    assert entry.size == path.stat().st_size
    assert hash_file(path, pieces=entry.pieces) == entry
    if entry.size == 0:
        return
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    for other in (bytes(content), path.read_bytes()[:-1]):
        path.write_bytes(other)
        assert hash_file(path, pieces=entry.pieces) != entry


def test_a_group_that_the_umask_admits_may_write_it(tmp_path):
    before = os.umask(0o002)
    try:
        write_file(tmp_path / "x", [b"x"])
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o664
