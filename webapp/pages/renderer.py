"""The pages that people see: a view turned into HTML.

Names and messages are chosen by tools, clients and strangers. They could carry markup, reverse the
direction of the words around them, or be so long that the buttons leave the screen; so everything
is escaped and cleaned on its way out, also in a template that an operator replaced. What somebody
decides about is shown whole (`message`, `label`, `whole`): it is refused where it is asked if it is
longer than what these show. Other texts are cut (`quoted`, `named`).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import idna
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from flows.question import MESSAGE_AT_MOST
from flows.shown import PILED_MARKS, spelled
from webapp.pages.views import View


class Renderer:
    """Renders views by the templates of some folders; the first folder that has one wins."""

    def __init__(self, *, folders: Sequence[Path], root_path: str = "") -> None:
        """`root_path` is where the paths of our routes begin: the filter `at` adds it."""
        self._environment = _environment(tuple(folders), root_path)

    def render(self, view: View) -> str:
        """The page as HTML that can always be encoded as UTF-8."""
        asked_by = "the application" if view.for_user else "your assistant"
        template = self._environment.get_template(view.template)
        return template.render(view=view, asked_by=asked_by, Asked_by=asked_by.capitalize())


def template_folder() -> Path:
    """The templates that come with us: inside an installed package, else beside it."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "templates"
    return installed if installed.is_dir() else package.parent / "templates"


@cache
def _environment(folders: tuple[Path, ...], root_path: str) -> Environment:
    """One for the same folders, with each template compiled once."""
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
    environment.filters["at"] = partial(_at, root_path=root_path)
    return environment


@dataclass(frozen=True, slots=True, kw_only=True)
class _Address:
    scheme: str
    host: str


_LONGEST_QUOTATION = 500
_MOST_LINES = 12
_LONGEST_NAME = 80
_LONGEST_LABEL = 16 * 1024  # what is asked has no longer one: flows.schema, flows.requests
_LONGEST_HOST = 253
_LONGEST_PLACE = 60
# Needed inside emoji and in Persian; they change how letters join, not their order.
_JOINERS = "\u200c\u200d"


def _printable(value: object) -> object:
    """What any expression of a template becomes before it is escaped."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = PILED_MARKS.sub(r"\1", value)
    return text if text.isprintable() else "".join(map(_harmless, "\n".join(text.splitlines())))


def _harmless(character: str) -> str:
    if _is_seen(character):
        return character
    # A control or direction character leaves a trace, so that a trick can be seen.
    return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"


def _quoted(text: str, limit: int = _LONGEST_QUOTATION) -> str:
    """A text that somebody else chose and nobody decides about, cut where it is too long."""
    return _cut(_message(text), limit)


def _message(text: str, limit: int = MESSAGE_AT_MOST) -> str:
    """A message, all of it, with its line breaks, but not so many that it pushes the page away."""
    lines = [" ".join(line.split()) for line in str(_printable(text)).split("\n")]
    whole = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    *first, last = whole.split("\n", _MOST_LINES - 1)
    return _cut("\n".join([*first, " ".join(last.split())]), limit)


def _whole(text: str) -> Markup:
    """What somebody decides about: nothing left out, and what cannot be seen spelled as in JSON."""
    piled = PILED_MARKS.sub(lambda found: found[1] + spelled(found[0][len(found[1]) :]), text)
    seen = "\n".join(
        line
        if line.isprintable()
        else "".join(sign if _is_seen(sign) else spelled(sign) for sign in line)
        for line in piled.split("\n")
    )
    return Markup(escape(seen))  # noqa: S704 - escaped, and kept from `_printable`


def _is_seen(sign: str) -> bool:
    return sign.isprintable() or sign == "\n" or sign in _JOINERS


def _named(text: str | None, otherwise: str = "") -> str:
    return _cut(_label(text), _LONGEST_NAME) or otherwise


def _label(text: str | None, otherwise: str = "", limit: int = _LONGEST_LABEL) -> str:
    """A name or label that is a part of what somebody decides: all of it, in one line."""
    return _cut(" ".join(str(_printable(text or "")).split()), limit) or otherwise


def _initial(text: str) -> str:
    """The letter that stands for a person; nothing for a name without one."""
    letter = next((character for character in text if character.isalnum()), "")
    return letter.upper()[:1]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def _address(origin: str) -> _Address:
    """An origin as a browser understands it: punycode, no user information, all of it."""
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
    """The one host to name in a heading or on a button, when there is one and it fits."""
    address = _address(origins[0]) if len(origins) == 1 else None
    fits = address and address.scheme and len(address.host) <= _LONGEST_PLACE
    return address.host if address and fits else otherwise


def _punycode(host: str) -> str:
    try:
        # No name is longer, so nothing that could be reached is ever shown in part.
        whole = host if len(host) > _LONGEST_HOST or host.isascii() else _idna(host)
    except UnicodeError:
        whole = host
    return _cut(_escaped(whole), _LONGEST_HOST)


def _idna(host: str) -> str:
    return idna.encode(host, uts46=True).decode("ascii")


def _escaped(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode("ascii")


def _whole_seconds(duration: timedelta) -> int:
    """Rounded up, so that a countdown never ends before the time itself."""
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


def _at(address: str, *, root_path: str) -> str:
    """A path of ours as a browser must ask for it; a whole address stays."""
    return root_path + address if address.startswith("/") else address


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "address": _address,
    "ago": _ago,
    "duration": _duration,
    "initial": _initial,
    "label": _label,
    "message": _message,
    "moment": _moment,
    "named": _named,
    "place": _place,
    "quoted": _quoted,
    "whole": _whole,
    "whole_seconds": _whole_seconds,
}
