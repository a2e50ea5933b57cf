"""What a command prints: the one way from a text to a terminal.

What could go wrong: a terminal that obeys a text. What a tool, a provider or a page wrote may set
the title, clear the screen, write to the clipboard or turn letters around. So whatever is printed,
ours included, has no sign that a terminal obeys; each is shown as one that it does not know.
"""

import sys
import unicodedata
from typing import TextIO

TRACE = "\N{REPLACEMENT CHARACTER}"


def printed(text: str, *, keeps_lines: bool = False) -> str:
    """Without signs that a terminal obeys or that turn letters around."""
    return "".join(_sign(sign, keeps_lines=keeps_lines) for sign in text)


def tell(text: str, *, out: TextIO | None = None, end: str = "\n") -> None:
    """Print it, whoever wrote it; to standard output, unless told otherwise."""
    stream: TextIO = sys.stdout if out is None else out
    stream.write(printed(text, keeps_lines=True) + end)
    stream.flush()


def _sign(sign: str, *, keeps_lines: bool) -> str:
    if sign.isprintable() or (keeps_lines and sign in "\n\t"):
        return sign
    return " " if unicodedata.category(sign) == "Zs" else TRACE
