"""The HTML renderer of the pages.

Risks: tools, clients and strangers choose names and messages. A name could contain markup, reverse
the direction of the text around it, or be so long that the buttons leave the screen. The renderer
therefore escapes and cleans every value, also in a template of the operator. Texts that a person
decides about are shown in full (filters `message`, `label` and `whole`): their length is limited,
because the server refuses a question with a longer text. Other texts are shortened (filters
`quoted` and `named`).
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit
from warnings import warn

import idna
import segno
from babel.dates import format_skeleton, format_timedelta
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from flows.question import MESSAGE_AT_MOST
from flows.shown import PILED_MARKS, spelled
from webapp.languages import ASKERS, ENGLISH, JUST_NOW, Language, languages_of, named_asker
from webapp.pages.views import View
from webapp.settings.brand import Brand

# Comments and indentation of our style sheets and script, which browsers don't need.
_COMMENTS = re.compile(rb"^\s*//.*\n|^ +|/\*[\s\S]*?\*/\s*", re.MULTILINE)
_HASHED = re.compile(r"(.+)\.[0-9a-f]{16}(\.[a-z]+)", re.DOTALL)
# Former names of fields. Until the next release, an operator's templates can use these names too.
FORMER_FIELDS: Mapping[str, str] = {
    "can_be_kept": "can_be_stored",
    "is_kept_to_some": "is_limited_to_some",
    "is_ours": "is_our_link",
    "kept": "is_stored",
}
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
        self.languages = languages_of(self.brand.languages)
        self.files = {**self.brand.files, **_static_files(tuple(folders[:-1]))}
        self._environment = _environment(tuple(folders), root_path)

    def render(self, view: View, language: Language = ENGLISH) -> str:
        """Return the page as HTML that can always be encoded as UTF-8."""
        spoken = _SPOKEN.set((language, view.for_user))
        try:
            return self._render(view, language)
        finally:
            _SPOKEN.reset(spoken)

    def _render(self, view: View, language: Language) -> str:
        asked_by = language.messages.gettext(ASKERS[view.for_user])
        shown = self.brand.shown(view.server)
        if shown != view.server:
            view = replace(view, server=shown)
        template = self._environment.get_template(view.template)
        return template.render(
            view=view,
            asked_by=asked_by,
            Asked_by=asked_by[:1].upper() + asked_by[1:],
            brand=self.brand,
            language=language,
        )


def template_folder() -> Path:
    """Return the folder of our templates, inside an installed package or next to it."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "templates"
    return installed if installed.is_dir() else package.parent / "templates"


def name_of(name: str, content: bytes) -> str:
    """Return a static file's name with a hash of its content, so that browsers can store it."""
    stem, _, suffix = name.rpartition(".")
    return f"{stem}.{hashlib.sha256(content).hexdigest()[:16]}.{suffix}"


def without_hash(name: str) -> str:
    """Return the name of a static file without the hash, if `name` has one."""
    return _HASHED.sub(r"\1\2", name)


@cache
def our_files() -> Mapping[str, tuple[bytes, str]]:
    """Return our own static files, read once. No request's path is used as a file path."""
    folder = Path(__file__).resolve().parent / "static"
    return {
        path.name: (_COMMENTS.sub(b"", path.read_bytes()), OWN_TYPES[path.suffix])
        for path in folder.iterdir()
        if path.suffix in OWN_TYPES
    }


@cache
def _static_files(folders: tuple[Path, ...]) -> Mapping[str, tuple[bytes, str]]:
    """Return the files of the folder `static` next to the operator's templates, read once.

    No request's path is used as a file path.
    """
    return {
        f"own/{path.name}": (path.read_bytes(), OWN_TYPES[path.suffix])
        for folder in folders
        for path in sorted((folder / "static").glob("*"))
        if path.suffix in OWN_TYPES and path.is_file()
    }


class _FormerOrUndefined(StrictUndefined):
    """An unknown name in a template, or the value of the field that had this name before."""

    # A value that __new__ returns instead of an instance needs no __init__.
    def __new__(  # pyright: ignore[reportInconsistentConstructor]
        cls, *_: object, obj: object = None, name: str | None = None, **__: object
    ) -> Any:
        field = FORMER_FIELDS.get(name or "")
        if field is None or not hasattr(obj, field):
            return super().__new__(cls)
        warn(f"view: the field {name} is now {field}.", FutureWarning, stacklevel=2)
        return getattr(obj, field)


@cache
def _environment(folders: tuple[Path, ...], root_path: str) -> Environment:
    """Return the shared environment of these folders, which compiles each template once."""
    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=_FormerOrUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        extensions=["jinja2.ext.i18n"],
    )
    environment.newstyle_gettext = True  # type: ignore[attr-defined]  # `trans` passes its values
    texts: dict[str, Any] = {"_": _gettext, "gettext": _gettext, "ngettext": _ngettext}
    environment.globals.update(texts)
    environment.filters.update(_FILTERS)
    files = {**our_files(), **_static_files(folders[:-1])}
    hashed = {f"/static/{name}": f"/static/{name_of(name, of)}" for name, (of, _) in files.items()}
    environment.filters["at"] = partial(_at, root_path=root_path, hashed=hashed)
    return environment


# The language of the current page, and True if an application asks its own user. This is a context
# variable because macros of an imported template do not see the values of the importing page.
_SPOKEN: ContextVar[tuple[Language, bool]] = ContextVar("_SPOKEN", default=(ENGLISH, False))


def _gettext(message: str, /, **values: object) -> Markup:
    """Return one of our sentences in the language of the page, with cleaned and escaped values."""
    language, for_user = _SPOKEN.get()
    return _filled(language.messages.gettext(named_asker(message, for_user=for_user)), values)


def _ngettext(one: str, several: str, num: int, /, **values: object) -> Markup:
    language, for_user = _SPOKEN.get()
    asked = [named_asker(message, for_user=for_user) for message in (one, several)]
    return _filled(language.messages.ngettext(asked[0], asked[1], num), {"num": num, **values})


def _translated(text: str | None) -> str:
    """Return a text of the code in the language of the page. An author's text stays as it is."""
    return _SPOKEN.get()[0].translated(text) if text else ""


def _filled(sentence: str, values: Mapping[str, object]) -> Markup:
    return Markup(sentence) % {name: _printable(value) for name, value in values.items()}  # noqa: S704 - a translation is checked, and a value is escaped


@dataclass(frozen=True, slots=True, kw_only=True)
class _Address:
    scheme: str
    host: str


_Unit: TypeAlias = Literal["day", "hour", "minute", "second"]
_LONGEST_QUOTATION = 500
_MOST_LINES = 12
_LONGEST_NAME = 80
_LONGEST_LABEL = 16 * 1024  # the limit for texts of questions in flows.schema and flows.requests
_LONGEST_HOST = 253
_LONGEST_PLACE = 60
# Emoji and Persian need these characters. They join letters, and do not change their order.
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
    # Show that there was a control or direction character: it can be an attempt to deceive.
    return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"


def _quoted(text: str, limit: int = _LONGEST_QUOTATION) -> str:
    """Shorten a text that the person does not decide about."""
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
    """Return one of our sentences, with the text between backticks shown as code."""
    parts = [escape(part) for part in str(_printable(text)).split("`")]
    whole = len(parts) % 2 == 1
    marked = [
        f'<code translate="no">{part}</code>' if whole and number % 2 else part
        for number, part in enumerate(parts)
    ]
    return Markup(("" if whole else "`").join(marked))  # noqa: S704 - each part is escaped


def _qr(url: str) -> Markup:
    """Return the QR code of an address as SVG. QR scanners need dark modules on a light ground."""
    code = segno.make_qr(url, error="l", boost_error=False)
    return Markup(code.svg_inline(light="#fff", svgclass="qr", lineclass=None, omitsize=True))  # noqa: S704 - only numbers


def _is_seen(sign: str) -> bool:
    return sign.isprintable() or sign == "\n" or sign in _JOINERS


def _named(text: str | None, otherwise: str = "") -> str:
    return _cut(_label(text), _LONGEST_NAME) or otherwise


def _label(text: str | None, otherwise: str = "", limit: int = _LONGEST_LABEL) -> str:
    """Return a name or label that the person decides about, in full and on one line."""
    return _cut(" ".join(str(_printable(text or "")).split()), limit) or otherwise


def _paragraph(text: str | None) -> str:
    """Return the first paragraph of a tool's description; the others are for the model."""
    return (text or "").strip().partition("\n\n")[0]


def _lowered(text: str) -> str:
    """Return words for use within an English sentence: "Delete it" becomes "delete it"."""
    if _SPOKEN.get()[0] is not ENGLISH:
        return text  # other languages keep their capitals, such as those of German nouns
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _initial(text: str) -> str:
    """Return the first letter of a person's name, or nothing if it has no letter."""
    first = next((character for character in text if character.isalnum()), "")
    return first.upper()[:1]


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
        # No valid host name is longer than the limit, so each reachable host is shown in full.
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


def _counted(duration: timedelta) -> tuple[int, _Unit]:
    """Return a duration as a number of one unit."""
    seconds = max(0, round(duration.total_seconds()))
    sizes: tuple[tuple[_Unit, int], ...] = (("day", 86400), ("hour", 3600), ("minute", 60))
    for unit, size in sizes:
        # Return "36 hours" and "90 minutes", which are more exact than "1 day" and "1 hour".
        if seconds >= (size if unit == "minute" else 2 * size):
            return seconds // size, unit
    return seconds, "second"


def _duration(duration: timedelta) -> str:
    return _in_words(*_counted(duration))


def _ago(duration: timedelta) -> str:
    if duration < timedelta(seconds=2):
        return _gettext(JUST_NOW)
    number, unit = _counted(duration)
    return _in_words(-number, unit, add_direction=True)


def _in_words(number: int, unit: _Unit, *, add_direction: bool = False) -> str:
    return format_timedelta(
        timedelta(**{f"{unit}s": number}),
        granularity=unit,
        threshold=math.inf,  # this unit, and no larger one
        add_direction=add_direction,
        locale=_SPOKEN.get()[0].locale,
    )


def _moment(when: datetime, now: datetime) -> str:
    if when.date() == now.date():
        return f"{_clock(when)} UTC"
    return f"{when:%Y-%m-%d %H:%M} UTC" if _SPOKEN.get()[0] is ENGLISH else _dated(when)


def _dated(when: datetime) -> str:
    language = _SPOKEN.get()[0]
    day = f"{when.day} {when:%b %Y}"
    if language is not ENGLISH:
        day = format_skeleton("yMMMd", when, locale=language.locale)
    return f"{day}, {_clock(when)} UTC"


def _clock(when: datetime) -> str:
    language = _SPOKEN.get()[0]
    if language is ENGLISH:  # the library's English times are American (3:00 PM)
        return f"{when:%H:%M}"
    return format_skeleton("Hm", when, locale=language.locale)


def _at(address: str, *, root_path: str, hashed: Mapping[str, str]) -> str:
    """Add the root path to one of our paths, and its hash to the address of a static file.

    An absolute URL stays as it is.
    """
    address = hashed.get(address, address)
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
    "translated": _translated,
    "whole": _whole,
    "whole_seconds": _whole_seconds,
}
