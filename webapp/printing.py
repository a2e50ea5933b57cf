"""What a command prints: the one way from a text to a terminal.

What could go wrong: a terminal that obeys a text. What a tool, a provider or a page wrote may set
the title, clear the screen, write to the clipboard or turn letters around. So whatever is printed,
ours included, has no sign that a terminal obeys; each is shown as one that it does not know.
"""

import os
import sys
import unicodedata
from typing import TextIO

UNREAD = 141  # as a shell says of a program that SIGPIPE ended
TRACE = "\N{REPLACEMENT CHARACTER}"


def printed(text: str, *, keeps_lines: bool = False) -> str:
    """Without signs that a terminal obeys or that turn letters around."""
    return "".join(_sign(sign, keeps_lines=keeps_lines) for sign in text)


def tell(text: str, *, out: TextIO | None = None, end: str = "\n") -> None:
    """Print it, whoever wrote it; to standard output, unless told otherwise.

    Where that takes no more the command ends: quietly if nobody reads, as behind `head`.
    """
    stream: TextIO | None = sys.stdout if out is None else out
    if stream is None:  # it was closed before we began
        return
    shown = printed(text, keeps_lines=True) + end
    encoding = stream.encoding or "utf-8"  # which may lack a sign
    try:
        stream.write(shown.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except OSError as error:
        # Python flushes once more at its end, and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if isinstance(error, BrokenPipeError):
            raise SystemExit(UNREAD) from None
        raise SystemExit(f"elicit: the output cannot be written: {error.strerror}.") from None


def _sign(sign: str, *, keeps_lines: bool) -> str:
    if sign.isprintable() or (keeps_lines and sign in "\n\t"):
        return sign
    return " " if unicodedata.category(sign) == "Zs" else TRACE
