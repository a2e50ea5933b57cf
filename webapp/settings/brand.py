"""The operator's brand: the name, logo, colour and links that every page shows.

Risks: a picture contains a script, is huge, incomplete or animated, or is no picture at all. So
only small, complete and still PNG, JPEG, GIF and WebP pictures are accepted. The server detects the
format and media type from the first bytes of a picture, not from its file name. SVG is refused,
because it can contain scripts. The server does not remove the metadata of a picture, because
encoding the picture again would need a library.

Another risk: an accent colour makes a button unreadable. So the contrast of the accent is checked
for light and dark pages.
"""

import base64
import binascii
import colorsys
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from webapp.languages import known_tag
from webapp.settings.parsers import each
from webapp.settings.table import setting

# The limit for a start page with its logo is 25 kB. docs/how-to/pages.md lists the size of each
# start page.
IMAGE_BYTES_AT_MOST: Final = 8 * 1024
IMAGE_PIXELS_AT_MOST: Final = 1024  # on each side
CONTRAST: Final = 4.5  # WCAG 2.2, 1.4.3 (AA) for text
_NAME_CHARACTERS = 80
_LEGAL_CHARACTERS = 120
# The text backgrounds in our stylesheet with the least contrast, in the light and dark schemes.
_LIGHT, _DARK = "#f3f2ee", "#212826"
_INKS = ("#ffffff", "#06100e")  # text on the accent
_COLOUR = re.compile("#[0-9a-fA-F]{6}")
_DATA = re.compile("data:([a-z+./-]*)(?:;[a-z0-9=.-]+)*;base64,(.*)", re.DOTALL)
_ENDS = {"png": b"IEND\xaeB`\x82", "jpeg": b"\xff\xd9", "gif": b";"}
_GIF_FRAME = b"\x21\xf9\x04"  # the block before each frame
_ANIMATED = {"png": (b"acTL",), "gif": (b"NETSCAPE2.0",), "webp": (b"ANIM", b"ANMF")}
_ADDRESS_CHARACTERS = 500
_MAIL_CHARACTERS = 254  # RFC 5321, 4.5.3.1
_SVG = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml|<!--|<!DOCTYPE|<svg)", re.IGNORECASE)
_MAIL = re.compile(r"[^@\s<>\"',;:?&/%]+@[^@\s<>\"',;:?&/%]+\.[^@\s<>\"',;:?&/%]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A picture that pages can show. `suffix` follows from its bytes, not from its name."""

    content: bytes
    suffix: str
    width: int
    height: int

    @property
    def media_type(self) -> str:
        return f"image/{self.suffix}"

    @property
    def name(self) -> str:
        return f"logo-{hashlib.sha256(self.content).hexdigest()[:16]}.{self.suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accent:
    """The colour of buttons and links on light and on dark pages, each with enough contrast."""

    light: str
    dark: str

    @property
    def style(self) -> bytes:
        """The style sheet that overrides the accent colours of our own style sheet."""
        return (
            f":root{{{_properties(self.light, -0.06)}}}\n"
            f"@media (prefers-color-scheme: dark){{:root{{{_properties(self.dark, 0.06)}}}}}\n"
        ).encode()

    @property
    def name(self) -> str:
        return f"brand-{hashlib.sha256(self.style).hexdigest()[:16]}.css"


def image_of(content: bytes) -> Image:
    """Return the picture with these bytes. Raises ValueError, whose message says what to change."""
    _must_be_small(len(content))
    if _SVG.match(content):
        raise ValueError(
            "SVG is refused, because it can contain scripts. Save the picture as PNG or WebP."
        )
    for suffix, measure in _FORMATS.items():
        try:
            size = measure(content)
        except IndexError:
            continue
        if size is None:
            continue
        width, height = size
        if not (0 < width <= IMAGE_PIXELS_AT_MOST and 0 < height <= IMAGE_PIXELS_AT_MOST):
            raise ValueError(
                f"the picture has {width} x {height} pixels, and pages show 1 to "
                f"{IMAGE_PIXELS_AT_MOST} on each side. Make it smaller."
            )
        _must_be_complete_and_still(content, suffix)
        return Image(content=content, suffix=suffix, width=width, height=height)
    raise ValueError("the file is not a PNG, JPEG, GIF or WebP picture. Save the picture as PNG.")


def _must_be_small(size: int) -> None:
    if size > IMAGE_BYTES_AT_MOST:
        raise ValueError(
            f"the picture has {size:,} bytes, and pages show at most {IMAGE_BYTES_AT_MOST:,}. "
            "Make it smaller: 128 x 128 pixels are enough."
        )


def _must_be_complete_and_still(content: bytes, suffix: str) -> None:
    if suffix == "webp":
        is_complete = len(content) >= 8 + _number(content, 4, 4, "little")
    else:
        is_complete = content.rstrip(b"\0\r\n").endswith(_ENDS[suffix])
    if not is_complete:
        raise ValueError("the end of the picture is missing. Save or copy the picture again.")
    # WCAG 2.2, 2.2.2: a picture that moves would need a button that stops it.
    has_frames = suffix == "gif" and content.count(_GIF_FRAME) > 1
    if has_frames or any(mark in content for mark in _ANIMATED.get(suffix, ())):
        raise ValueError(
            "the picture is animated, and pages show only still pictures. Save one picture of it "
            "as PNG."
        )


def icon_of(icons: Iterable[Any]) -> Image | None:
    """Return the first usable icon of an MCP server that is a `data:` URI, or None.

    An icon at another address is never fetched.
    """
    for icon in icons:
        source = getattr(icon, "src", None)
        found = _DATA.fullmatch(source) if isinstance(source, str) else None
        if found is None or len(found[2]) > 2 * IMAGE_BYTES_AT_MOST:
            continue
        try:
            return image_of(base64.b64decode(found[2], validate=True))
        except (ValueError, binascii.Error):
            continue
    return None


def contrast_of(one: str, other: str) -> float:
    """Return the contrast ratio of two colours such as #0d5f57 (WCAG 2.2)."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def accent(text: str) -> Accent | None:
    """Return the accent of a setting: one colour, or one for light and one for dark pages."""
    if not text:
        return None
    colours = [word.lower() for word in text.replace(",", " ").split()]
    if len(colours) not in (1, 2) or not all(map(_COLOUR.fullmatch, colours)):
        raise ValueError(
            "must be a colour such as #0d5f57, or two: one for light and one for dark pages."
        )
    light, *others = colours
    _must_contrast(light, _LIGHT, page="light", darker=True)
    dark = others[0] if others else _readable(light, _DARK, darker=False)
    _must_contrast(dark, _DARK, page="dark", darker=False)
    return Accent(light=light, dark=dark)


def _must_contrast(colour: str, ground: str, *, page: str, darker: bool) -> None:
    found = contrast_of(colour, ground)
    if found < CONTRAST:
        raise ValueError(
            f"{colour} has a contrast of {found:.1f} on {page} pages, and text needs {CONTRAST}. "
            f"Choose a {'darker' if darker else 'lighter'} colour, for example "
            f"{_readable(colour, ground, darker=darker)}."
        )


def _readable(colour: str, ground: str, *, darker: bool) -> str:
    """Return the nearest shade of the colour that is readable on this ground."""
    step = -0.01 if darker else 0.01
    while contrast_of(colour, ground) < CONTRAST:
        colour = _shade(colour, step)
    return colour


def _shade(colour: str, by: float) -> str:
    hue, lightness, saturation = colorsys.rgb_to_hls(*_parts(colour))
    changed = colorsys.hls_to_rgb(hue, min(1.0, max(0.0, lightness + by)), saturation)
    return "#" + "".join(f"{round(part * 255):02x}" for part in changed)


def _properties(colour: str, over: float) -> str:
    ink = max(_INKS, key=lambda one: contrast_of(one, colour))
    hovered = _shade(colour, over)
    return f"--accent:{colour};--accent-over:{hovered};--on-accent:{ink}"


def _parts(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def _luminance(colour: str) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in _parts(colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _png(content: bytes) -> tuple[int, int] | None:
    if content[:16] != b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR":
        return None
    return _number(content, 16, 4), _number(content, 20, 4)


def _gif(content: bytes) -> tuple[int, int] | None:
    if content[:6] not in (b"GIF87a", b"GIF89a"):
        return None
    return _number(content, 6, 2, "little"), _number(content, 8, 2, "little")


def _jpeg(content: bytes) -> tuple[int, int] | None:
    if content[:3] != b"\xff\xd8\xff":
        return None
    at = 2
    while content[at] == 0xFF:
        marker = content[at + 1]
        if marker in range(0xC0, 0xD0) and marker not in (0xC4, 0xC8, 0xCC):
            return _number(content, at + 7, 2), _number(content, at + 5, 2)
        at += 2 + max(2, _number(content, at + 2, 2))
    return None


def _webp(content: bytes) -> tuple[int, int] | None:
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP":
        return None
    match content[12:16]:
        case b"VP8 ":
            width, height = _number(content, 26, 2, "little"), _number(content, 28, 2, "little")
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            bits = _number(content, 21, 4, "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            width, height = _number(content, 24, 3, "little"), _number(content, 27, 3, "little")
            return width + 1, height + 1
        case _:
            return None


def _number(content: bytes, at: int, size: int, order: Any = "big") -> int:
    part = content[at : at + size]
    if len(part) < size:
        raise IndexError
    return int.from_bytes(part, order)


_FORMATS: Mapping[str, Callable[[bytes], tuple[int, int] | None]] = {
    "png": _png,
    "jpeg": _jpeg,
    "gif": _gif,
    "webp": _webp,
}


def _logo(text: str) -> Image | None:
    if not text:
        return None
    path = Path(text)
    try:
        _must_be_small(path.stat().st_size)
        with path.open("rb") as file:  # stat gives no size for a device
            return image_of(file.read(IMAGE_BYTES_AT_MOST + 1))
    except OSError as error:
        raise ValueError(f"{text} cannot be read: {error.strerror}.") from None


def _line(at_most: int) -> Callable[[str], str | None]:
    def parse(text: str) -> str | None:
        if len(text) > at_most or not text.isprintable():
            raise ValueError(f"must be one line of at most {at_most} visible characters.")
        return text or None

    return parse


def _page(text: str) -> str | None:
    """Return the address of a page, or None for an empty text."""
    if text and not is_page(text):
        raise ValueError(
            "must be an https:// address of at most 500 characters, such as "
            "https://example.com/privacy."
        )
    return text or None


def is_page(text: str) -> bool:
    """Return True if pages can link to this address."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port  # reading a wrong port raises ValueError
    except ValueError:
        return False
    is_plain = text.isascii() and text.isprintable() and not re.search(r"[\s<>\"'\\]", text)
    is_short = len(text) <= _ADDRESS_CHARACTERS
    return (
        is_plain and is_short and parts.scheme == "https" and bool(host) and "@" not in parts.netloc
    )


def _contact(text: str) -> str | None:
    is_mail = _MAIL.fullmatch(text) and text.isprintable() and len(text) <= _MAIL_CHARACTERS
    if text and not is_mail and not is_page(text):
        raise ValueError(
            "must be an e-mail address, such as help@example.com, or an https:// address."
        )
    return text or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Brand:
    """The brand as the pages show it.

    `own` has the server's name and title. Pages show `name` instead of them. If unset, `name` is
    the server's title or name, and `logo` is its icon. `website` is always the server's own.
    """

    name: str | None = setting(
        "ELICIT_BRAND_NAME",
        parse=_line(_NAME_CHARACTERS),
        otherwise="the title of the served server, or its name",
        says="the name that pages show for this server",
    )
    logo: Image | None = setting(
        "ELICIT_BRAND_LOGO",
        parse=_logo,
        otherwise="the icon of the served server, if it is a `data:` URI",
        says=f"a file with the logo: PNG, JPEG, GIF or WebP, at most {IMAGE_BYTES_AT_MOST // 1024} "
        f"KiB and {IMAGE_PIXELS_AT_MOST} pixels on each side. SVG and animations are refused",
        names_file=True,
    )
    accent: Accent | None = setting(
        "ELICIT_BRAND_ACCENT",
        parse=accent,
        otherwise="elicit-url's own green",
        says="the colour of buttons and links, such as `#0d5f57`, or two: for light and for dark "
        "pages. A colour without enough contrast for text (WCAG AA) is refused",
    )
    legal_name: str | None = setting(
        "ELICIT_BRAND_LEGAL_NAME",
        parse=_line(_LEGAL_CHARACTERS),
        otherwise="`ELICIT_BRAND_NAME`",
        says="the legal name of the operator, which a payment page shows as the one who is paid",
    )
    contact: str | None = setting(
        "ELICIT_BRAND_CONTACT",
        parse=_contact,
        says="an e-mail address or an `https://` address for questions, shown on every page",
    )
    privacy: str | None = setting(
        "ELICIT_BRAND_PRIVACY",
        parse=_page,
        says="the `https://` address of the privacy policy, linked on every page",
    )
    terms: str | None = setting(
        "ELICIT_BRAND_TERMS",
        parse=_page,
        says="the `https://` address of the terms of use, linked on every page",
    )
    languages: tuple[str, ...] = setting(
        "ELICIT_LANGUAGES",
        parse=each(known_tag),
        otherwise="all languages, English first",
        says="the languages of the pages, such as `de, en`. Each browser gets its preferred "
        "language if it is in the list, otherwise the first one: "
        "[translating](../how-to/pages.md#languages)",
    )
    website: str | None = None
    own: frozenset[str] = frozenset()

    def of(self, name: str, server: Any = None) -> "Brand":
        """Return the brand of an MCP server. Its title and icon are used for unset fields."""
        title, website = getattr(server, "title", None), getattr(server, "website_url", None)
        names = [each for each in (name, title) if isinstance(each, str) and each]
        return replace(
            self,
            name=self.name or names[-1],
            logo=self.logo or icon_of(getattr(server, "icons", None) or ()),
            website=website if isinstance(website, str) and is_page(website) else None,
            own=frozenset(names),
        )

    def shown(self, server: str) -> str:
        """Return the brand's name if `server` is this server's name or title, else `server`."""
        return self.name if self.name is not None and server in self.own else server

    @property
    def payee(self) -> str | None:
        """The legal name of the operator, or else the brand's name if it is set."""
        return self.legal_name or self.name

    @property
    def files(self) -> dict[str, tuple[bytes, str]]:
        """The files that pages request, by their names: content and media type."""
        found: dict[str, tuple[bytes, str]] = {}
        if self.logo is not None:
            found[self.logo.name] = (self.logo.content, self.logo.media_type)
        if self.accent is not None:
            found[self.accent.name] = (self.accent.style, "text/css")
        return found
