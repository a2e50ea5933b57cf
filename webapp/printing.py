"""Printing: the only way by which commands write text to a terminal.

An address can become a terminal link (OSC 8) with a shortened text. Without links, the complete
address is printed.

Risks: a terminal executes control characters. Text from a tool, a provider or a page could set the
title, clear the screen, write to the clipboard or change the direction of text. All printed text,
including our own, therefore has its control characters replaced by U+FFFD. Links are added
afterwards, around addresses without control characters.
"""

import os
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TextIO
from urllib.parse import urlsplit

UNREAD = 141  # a shell's exit status for a program that SIGPIPE ended
TRACE = "\N{REPLACEMENT CHARACTER}"
SHORT_LINK = 40  # a shorter address is shown completely

# Set by terminals that support OSC 8 links. Other terminals may print them badly.
_TERMINALS_WITH_LINKS = {
    "TERM_PROGRAM": ("iTerm.app", "WezTerm", "vscode", "ghostty", "Hyper", "rio", "zed"),
    "TERM": ("xterm-kitty", "xterm-ghostty", "alacritty", "foot", "contour", "wezterm"),
    "WT_SESSION": (),  # any value of this variable
    "KONSOLE_VERSION": (),
    "DOMTERM": (),
}
_VTE_WITH_LINKS = 5000


def printed(text: str, *, keeps_lines: bool = False) -> str:
    """Return the text without control characters and characters that change its direction."""
    return "".join(_sign(sign, keeps_lines=keeps_lines) for sign in text)


def print_text(
    text: str, *, out: TextIO | None = None, end: str = "\n", links: Sequence[str] = ()
) -> None:
    """Print text from any source, by default to standard output.

    `links` are addresses in the text that a terminal shows as links. If writing fails, the command
    ends. It ends without an error if the reader has closed the pipe, as `head` does.
    """
    stream: TextIO | None = sys.stdout if out is None else out
    if stream is None:  # standard output was closed before the start
        return
    shown = printed(text, keeps_lines=True) + end
    if links and stream.isatty() and makes_links(os.environ):
        for url in links:
            shown = shown.replace(url, _linked(url))
    encoding = stream.encoding or "utf-8"  # an encoding may lack characters of the text
    try:
        stream.write(shown.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except OSError as error:
        # Python flushes once more at exit, and would print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if isinstance(error, BrokenPipeError):
            raise SystemExit(UNREAD) from None
        raise SystemExit(f"elicit: the output cannot be written: {error.strerror}.") from None


def makes_links(environment: Mapping[str, str]) -> bool:
    """Return True if the terminal supports links and NO_COLOR is not set."""
    if environment.get("NO_COLOR") or environment.get("TERM", "dumb") == "dumb":
        return False
    vte = environment.get("VTE_VERSION", "")
    if vte.isascii() and vte.isdecimal() and int(vte) >= _VTE_WITH_LINKS:
        return True
    return any(
        environment.get(name) and (not values or environment[name] in values)
        for name, values in _TERMINALS_WITH_LINKS.items()
    )


def _linked(url: str) -> str:
    """Return the address as a link, if no character in it could end the link."""
    if not (url.isascii() and url.isprintable() and " " not in url):
        return url
    parts = urlsplit(url)
    short = f"{parts.scheme}://{parts.netloc}{parts.path.rpartition('/')[0]}/…"
    text = url if len(url) <= SHORT_LINK else short
    return f"\x1b]8;;{url}\x1b\\{text}\x1b]8;;\x1b\\"


def _sign(sign: str, *, keeps_lines: bool) -> str:
    if sign.isprintable() or (keeps_lines and sign in "\n\t"):
        return sign
    return " " if unicodedata.category(sign) == "Zs" else TRACE
