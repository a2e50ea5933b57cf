"""The HTML renderer of the pages.

Tools, clients and strangers choose names and messages. These could contain markup, reverse the
direction of the text around them, or be so long that the buttons leave the screen. So the renderer
escapes and cleans every value, also in a template that an operator replaced. Texts that a person
decides about are shown in full (`message`, `label`, `whole`): a longer text is refused when the
question is asked. Other texts are cut (`quoted`, `named`).
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import idna
import segno
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from flows.question import MESSAGE_AT_MOST
from flows.shown import PILED_MARKS, spelled
from webapp.pages.views import View
from webapp.settings.brand import Brand

# The files that an operator's templates can use, by their suffix.
OWN_TYPES: Mapping[str, str] = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
}


class Renderer:
    """Renders views with the templates of some folders.

    If several folders have a template, the first folder's template is used.
    """

    def __init__(
        self, *, folders: Sequence[Path], root_path: str = "", brand: Brand | None = None
    ) -> None:
        """Create a renderer. `root_path` is the prefix that the filter `at` adds to our paths."""
        self.brand = brand or Brand()
        self.files = {**self.brand.files, **_static_files(tuple(folders[:-1]))}
        self._environment = _environment(tuple(folders), root_path)

    def render(self, view: View) -> str:
        """Return the page as HTML that can always be encoded as UTF-8."""
        asked_by = "the application" if view.for_user else "your assistant"
        shown = self.brand.shown(view.server)
        if shown != view.server:
            view = replace(view, server=shown)
        template = self._environment.get_template(view.template)
        return template.render(
            view=view, asked_by=asked_by, Asked_by=asked_by.capitalize(), brand=self.brand
        )


def template_folder() -> Path:
    """Return the folder of our templates, inside an installed package or next to it."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "templates"
    return installed if installed.is_dir() else package.parent / "templates"


def version_of(content: bytes) -> str:
    """Return the version of a file for its address, so that browsers can store it forever."""
    return hashlib.sha256(content).hexdigest()[:16]


@cache
def our_files() -> Mapping[str, tuple[bytes, str]]:
    """Return our own static files, read once: the path of a request never reaches the disk."""
    folder = Path(__file__).resolve().parent / "static"
    return {
        path.name: (path.read_bytes(), OWN_TYPES[path.suffix])
        for path in folder.iterdir()
        if path.suffix in OWN_TYPES
    }


@cache
def _static_files(folders: tuple[Path, ...]) -> Mapping[str, tuple[bytes, str]]:
    """Return the files of the folder `static` next to the operator's templates, read once.

    The path of a request never reaches the disk.
    """
    return {
        f"own/{path.name}": (path.read_bytes(), OWN_TYPES[path.suffix])
        for folder in folders
        for path in sorted((folder / "static").glob("*"))
        if path.suffix in OWN_TYPES and path.is_file()
    }


@cache
def _environment(folders: tuple[Path, ...], root_path: str) -> Environment:
    """Return the shared environment of these folders, which compiles each template once."""
    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(_FILTERS)
    files = {**our_files(), **_static_files(folders[:-1])}
    versions = {f"/static/{name}": version_of(content) for name, (content, _) in files.items()}
    environment.filters["at"] = partial(_at, root_path=root_path, versions=versions)
    return environment


@dataclass(frozen=True, slots=True, kw_only=True)
class _Address:
    scheme: str
    host: str


_LONGEST_QUOTATION = 500
_MOST_LINES = 12
_LONGEST_NAME = 80
_LONGEST_LABEL = 16 * 1024  # the limit of what is asked: flows.schema, flows.requests
_LONGEST_HOST = 253
_LONGEST_PLACE = 60
# Emoji and Persian need these; they change how letters join, not their order.
_JOINERS = "\u200c\u200d"


def _printable(value: object) -> object:
    """Clean any value of a template expression before it is escaped."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = PILED_MARKS.sub(r"\1", value)
    return text if text.isprintable() else "".join(map(_harmless, "\n".join(text.splitlines())))


def _harmless(character: str) -> str:
    if _is_seen(character):
        return character
    # A control or direction character is replaced visibly, so that a trick can be seen.
    return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"


def _quoted(text: str, limit: int = _LONGEST_QUOTATION) -> str:
    """Cut a text that others chose and that the person does not decide about."""
    return _cut(_message(text), limit)


def _message(text: str, limit: int = MESSAGE_AT_MOST) -> str:
    """Return a message in full, with its line breaks, but at most 12 lines."""
    lines = [" ".join(line.split()) for line in str(_printable(text)).split("\n")]
    whole = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    *first, last = whole.split("\n", _MOST_LINES - 1)
    return _cut("\n".join([*first, " ".join(last.split())]), limit)


def _whole(text: str) -> Markup:
    """Return all of a text that the person decides about.

    Escape invisible characters as in JSON.
    """
    piled = PILED_MARKS.sub(lambda found: found[1] + spelled(found[0][len(found[1]) :]), text)
    seen = "\n".join(
        line
        if line.isprintable()
        else "".join(sign if _is_seen(sign) else spelled(sign) for sign in line)
        for line in piled.split("\n")
    )
    return Markup(escape(seen))  # noqa: S704 - escaped; Markup stays as it is in `_printable`


def _marked(text: str) -> Markup:
    """Return one of our sentences, with what is between backticks as code."""
    parts = [escape(part) for part in str(_printable(text)).split("`")]
    whole = len(parts) % 2 == 1
    marked = [
        f'<code translate="no">{part}</code>' if whole and number % 2 else part
        for number, part in enumerate(parts)
    ]
    return Markup(("" if whole else "`").join(marked))  # noqa: S704 - each part is escaped


def _qr(url: str) -> Markup:
    """Return the QR code of an address as SVG, dark on light as readers need it."""
    code = segno.make_qr(url, error="l", boost_error=False)
    return Markup(code.svg_inline(light="#fff", svgclass="qr", lineclass=None, omitsize=True))  # noqa: S704 - only numbers


def _is_seen(sign: str) -> bool:
    return sign.isprintable() or sign == "\n" or sign in _JOINERS


def _named(text: str | None, otherwise: str = "") -> str:
    return _cut(_label(text), _LONGEST_NAME) or otherwise


def _label(text: str | None, otherwise: str = "", limit: int = _LONGEST_LABEL) -> str:
    """Return a name or label that the person decides about: in full, on one line."""
    return _cut(" ".join(str(_printable(text or "")).split()), limit) or otherwise


def _paragraph(text: str | None) -> str:
    """Return the first paragraph of a tool's description; the others are for the model."""
    return (text or "").strip().partition("\n\n")[0]


def _lowered(text: str) -> str:
    """Return words for use within a sentence: "API key" stays, "Delete it" becomes "delete it"."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _initial(text: str) -> str:
    """Return the first letter of a person's name, or nothing if it has no letter."""
    letter = next((character for character in text if character.isalnum()), "")
    return letter.upper()[:1]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def _address(origin: str) -> _Address:
    """Return an origin as a browser understands it, in punycode and without user information."""
    try:
        parts = urlsplit(origin)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if not host:
        return _Address(scheme="", host=_cut(_escaped(origin), _LONGEST_HOST))
    shown = f"[{host}]" if ":" in host else _punycode(host)
    return _Address(scheme=f"{scheme}://", host=f"{shown}:{port}" if port else shown)


def _place(origins: Sequence[str], otherwise: str) -> str:
    """Return the host for a heading or a button if there is exactly one and it is short."""
    address = _address(origins[0]) if len(origins) == 1 else None
    fits = address and address.scheme and len(address.host) <= _LONGEST_PLACE
    return address.host if address and fits else otherwise


def _punycode(host: str) -> str:
    try:
        # No valid name is longer, so a host that can be reached is always shown in full.
        whole = host if len(host) > _LONGEST_HOST or host.isascii() else _idna(host)
    except UnicodeError:
        whole = host
    return _cut(_escaped(whole), _LONGEST_HOST)


def _idna(host: str) -> str:
    return idna.encode(host, uts46=True).decode("ascii")


def _escaped(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode("ascii")


def _whole_seconds(duration: timedelta) -> int:
    """Round up, so that a countdown never ends too early."""
    return max(0, math.ceil(duration.total_seconds()))


def _duration(duration: timedelta) -> str:
    seconds = max(0, round(duration.total_seconds()))
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        # "36 hours" and "90 minutes" say more than "1 day" and "1 hour".
        if seconds >= (size if unit == "minute" else 2 * size):
            return _counted(seconds // size, unit)
    return _counted(seconds, "second")


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def _ago(duration: timedelta) -> str:
    return "just now" if duration < timedelta(seconds=2) else f"{_duration(duration)} ago"


def _moment(when: datetime, now: datetime) -> str:
    day = "" if when.date() == now.date() else f"{when:%Y-%m-%d} "
    return f"{day}{when:%H:%M} UTC"


def _dated(when: datetime) -> str:
    return f"{when.day} {when:%b %Y, %H:%M} UTC"


def _at(address: str, *, root_path: str, versions: Mapping[str, str]) -> str:
    """Add the root path to one of our paths, and its version to the address of a static file.

    An absolute URL stays as it is.
    """
    if address in versions:
        address = f"{address}?v={versions[address]}"
    return root_path + address if address.startswith("/") else address


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "address": _address,
    "ago": _ago,
    "dated": _dated,
    "duration": _duration,
    "initial": _initial,
    "label": _label,
    "lowered": _lowered,
    "marked": _marked,
    "message": _message,
    "moment": _moment,
    "named": _named,
    "paragraph": _paragraph,
    "place": _place,
    "qr": _qr,
    "quoted": _quoted,
    "whole": _whole,
    "whole_seconds": _whole_seconds,
}
