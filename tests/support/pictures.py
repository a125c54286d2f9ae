"""Small pictures."""

import struct
import zlib


def png(width: int, height: int, value: int = 128, alpha: int | None = None) -> bytes:
    """A PNG of one colour: grey, or with an alpha channel."""
    pixel = bytes([value]) if alpha is None else bytes([value] * 3 + [alpha])
    data = b"".join(b"\x00" + pixel * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if alpha is None else 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in ((b"IHDR", header), (b"IDAT", zlib.compress(data)), (b"IEND", b""))
    )
