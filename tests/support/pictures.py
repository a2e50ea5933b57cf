"""The first and last bytes of pictures, with the dimensions that they declare."""

import base64
import struct

PNG_END = b"\0\0\0\0IEND\xaeB`\x82"


def png(width: int = 64, height: int = 64) -> bytes:
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I4sII", 13, b"IHDR", width, height)
        + bytes(9)
        + PNG_END
    )


def jpeg(width: int = 64, height: int = 32) -> bytes:
    before = b"\xff\xe0" + struct.pack(">H", 16) + bytes(14)
    frame = b"\xff\xc2" + struct.pack(">HBHH", 11, 8, height, width) + bytes(4)
    return b"\xff\xd8" + before + frame + b"\xff\xd9"


def gif(width: int = 64, height: int = 32) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def webp(width: int = 64, height: int = 32) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + bytes(4) + b"WEBPVP8X" + bytes(8) + sides


def lossless(width: int = 64, height: int = 32) -> bytes:
    bits = ((width - 1) | (height - 1) << 14).to_bytes(4, "little")
    return b"RIFF" + bytes(4) + b"WEBPVP8L" + bytes(4) + b"/" + bits


def lossy(width: int = 64, height: int = 32) -> bytes:
    sides = struct.pack("<HH", width, height)
    return b"RIFF" + bytes(4) + b"WEBPVP8 " + bytes(10) + sides


def data_uri(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"
