"""Drawings of the sandbox's people: rows of signs, made into a PNG by the standard library."""

import struct
import zlib
from collections.abc import Mapping, Sequence

SIDE = 8  # dots for each sign
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_INDEXED = 3  # PNG, third edition, 11.2.1: each dot names one of the palette's colours


def png(rows: Sequence[str], *, colours: Mapping[str, str]) -> bytes:
    """The rows, which are equally long; `colours` has one, as #rrggbb, for each sign in them."""
    numbers = {sign: number for number, sign in enumerate(colours)}
    lines = [bytes(numbers[sign] for sign in row for _ in range(SIDE)) for row in rows]
    # Each line begins with the way it is filtered: none.
    dots = b"".join(b"\0" + line for line in lines for _ in range(SIDE))
    size = struct.pack(">II", len(lines[0]), len(lines) * SIDE)
    return b"".join(
        [
            _SIGNATURE,
            _chunk(b"IHDR", size + bytes([8, _INDEXED, 0, 0, 0])),
            _chunk(b"PLTE", b"".join(bytes.fromhex(one.lstrip("#")) for one in colours.values())),
            _chunk(b"IDAT", zlib.compress(dots, 9)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)
