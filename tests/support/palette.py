"""PNG files with a palette of few colours: a fourth of the bytes of a browser's screenshot."""

import struct
import zlib
from collections import Counter
from collections.abc import Iterator

COLOURS = 32
_NEAR = 300  # squared distance of two colours that may share an entry
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_BYTES = 3  # of a pixel: a screenshot without transparency


def with_palette(png: bytes) -> bytes:
    """Return an 8-bit RGB picture as a PNG file with a palette of at most `COLOURS` colours."""
    width, height, pixels = _pixels(png)
    counts = Counter(pixels)
    palette = list[bytes]()
    for colour, _ in counts.most_common():
        if all(_distance(colour, one) > _NEAR for one in palette):
            palette.append(colour)
        if len(palette) == COLOURS:
            break
    nearest = {colour: _nearest(colour, palette) for colour in counts}
    indexes = bytes(map(nearest.__getitem__, pixels))
    rows = b"".join(b"\0" + indexes[at : at + width] for at in range(0, width * height, width))
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", header), (b"PLTE", b"".join(palette)), (b"IDAT", zlib.compress(rows, 9)))
    return _SIGNATURE + b"".join(_chunk(*part) for part in (*parts, (b"IEND", b"")))


def _nearest(colour: bytes, palette: list[bytes]) -> int:
    distances = [_distance(colour, one) for one in palette]
    return distances.index(min(distances))


def _distance(one: bytes, other: bytes) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + checksum


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_SIGNATURE)
    while at < len(png):
        (size,) = struct.unpack_from(">I", png, at)
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        at += size + 12


def _pixels(png: bytes) -> tuple[int, int, list[bytes]]:
    """Return the width, the height and the colour of each pixel."""
    chunks = list(_chunks(png))
    width, height, depth, kind = struct.unpack_from(">IIBB", dict(chunks)[b"IHDR"])
    assert (depth, kind) == (8, 2), "a screenshot must be an 8-bit RGB image"
    raw = zlib.decompress(b"".join(content for name, content in chunks if name == b"IDAT"))
    size, above, pixels = width * _BYTES, bytearray(width * _BYTES), list[bytes]()
    for start in range(0, len(raw), size + 1):
        row = _unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + size]), above)
        pixels += [bytes(row[at : at + _BYTES]) for at in range(0, size, _BYTES)]
        above = row
    return width, height, pixels


def _unfiltered(kind: int, row: bytearray, above: bytearray) -> bytearray:
    """Undo the filter of a row (PNG specification, 9.2)."""
    for at in range(len(row) if kind else 0):
        left = row[at - _BYTES] if at >= _BYTES else 0
        corner = above[at - _BYTES] if at >= _BYTES else 0
        guess = (left, above[at], (left + above[at]) // 2, _paeth(left, above[at], corner))
        row[at] = (row[at] + guess[kind - 1]) & 0xFF
    return row


def _paeth(left: int, above: int, corner: int) -> int:
    guess = left + above - corner
    return min((left, above, corner), key=lambda one: abs(guess - one))
