"""What a command prints: the one way from a text to a terminal.

An address can be a link there (OSC 8), which stands as its beginning; anywhere else it is whole.

What could go wrong: a terminal that obeys a text. What a tool, a provider or a page wrote may set
the title, clear the screen, write to the clipboard or turn letters around. So whatever is printed,
ours included, has no sign that a terminal obeys; each is shown as one that it does not know. A
link is made afterwards, of an address that has no such sign.
"""

import os
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TextIO
from urllib.parse import urlsplit

UNREAD = 141  # as a shell says of a program that SIGPIPE ended
TRACE = "\N{REPLACEMENT CHARACTER}"
SHORT_LINK = 40  # an address of so many signs stands whole

# Set by terminals that make links of OSC 8; what others make of it is not known.
_TERMINALS_WITH_LINKS = {
    "TERM_PROGRAM": ("iTerm.app", "WezTerm", "vscode", "ghostty", "Hyper", "rio", "zed"),
    "TERM": ("xterm-kitty", "xterm-ghostty", "alacritty", "foot", "contour", "wezterm"),
    "WT_SESSION": (),  # with any value
    "KONSOLE_VERSION": (),
    "DOMTERM": (),
}
_VTE_WITH_LINKS = 5000


def printed(text: str, *, keeps_lines: bool = False) -> str:
    """Without signs that a terminal obeys or that turn letters around."""
    return "".join(_sign(sign, keeps_lines=keeps_lines) for sign in text)


def tell(
    text: str, *, out: TextIO | None = None, end: str = "\n", links: Sequence[str] = ()
) -> None:
    """Print it, whoever wrote it; to standard output, unless told otherwise.

    `links` are addresses in it that a terminal makes links of. Where the output takes no more the
    command ends: quietly if nobody reads, as behind `head`.
    """
    stream: TextIO | None = sys.stdout if out is None else out
    if stream is None:  # it was closed before we began
        return
    shown = printed(text, keeps_lines=True) + end
    if links and stream.isatty() and makes_links(os.environ):
        for url in links:
            shown = shown.replace(url, _linked(url))
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


def makes_links(environment: Mapping[str, str]) -> bool:
    """Whether the terminal of that environment is one that knows links, and nobody wants none."""
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
    """The same as a link, where nothing in it could end that."""
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
