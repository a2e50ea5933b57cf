"""The operator's brand settings: valid pictures and colours, and the errors for invalid ones."""

from pathlib import Path

import mcp_types as types
import pytest

from tests.support.pictures import PNG_END, data_uri, gif, jpeg, lossless, lossy, png, webp
from webapp.settings.brand import (
    CONTRAST,
    IMAGE_BYTES_AT_MOST,
    Brand,
    accent,
    contrast_of,
    icon_of,
    image_of,
)
from webapp.settings.settings import BadSettings, read_settings

SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (png(64, 32), "image/png"),
        (jpeg(), "image/jpeg"),
        (gif(), "image/gif"),
        (webp(), "image/webp"),
        (lossless(), "image/webp"),
        (lossy(), "image/webp"),
    ],
)
def test_media_type_and_size_of_a_picture_come_from_its_bytes(content: bytes, media_type: str):
    found = image_of(content)
    assert (found.media_type, found.width, found.height) == (media_type, 64, 32)


# finding: XP12
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (SVG, "SVG is refused"),
        (b"<?xml version='1.0'?>" + SVG, "SVG is refused"),
        (b"<script>alert(1)</script>", "not a PNG, JPEG, GIF or WebP"),
        (b"", "not a PNG"),
        (png()[:20], "not a PNG"),
        (b"\xff\xd8\xff\xe0\x00\x00", "not a PNG"),
        (jpeg()[:24], "not a PNG"),
        (b"\xef\xbb\xbf" + SVG, "SVG is refused"),
        *((whole[:-2], "end of the picture is missing") for whole in (png(), jpeg(), gif())),
        (b"RIFF\xff\0\0\0" + webp()[8:], "end of the picture is missing"),
        (png().replace(PNG_END, b"\0\0\0\x08acTL" + PNG_END), "is animated"),
        (gif()[:-1] + b"\x21\xff\x0bNETSCAPE2.0;", "is animated"),
        (gif()[:-1] + 2 * b"\x21\xf9\x04\0\0\0\0\0" + b";", "is animated"),
        (webp() + b"ANIM", "is animated"),
        (png(0, 5), "0 x 5 pixels"),
        (png(60_000, 60_000), "60000 x 60000 pixels"),
        (png() + bytes(IMAGE_BYTES_AT_MOST), "bytes, and pages show at most"),
    ],
)
def test_file_that_is_no_small_picture_is_refused_with_a_sentence(content: bytes, says: str):
    with pytest.raises(ValueError, match=says):
        image_of(content)


# finding: XP4
def test_first_usable_icon_of_a_server_is_its_logo_and_no_address_is_fetched():
    icons = [
        types.Icon(src="https://evil.example/icon.png"),
        types.Icon(src=data_uri(SVG, "image/svg+xml")),
        types.Icon(src=data_uri(SVG, "image/png")),
        types.Icon(src="data:image/png;base64,***"),
        types.Icon(src=data_uri(bytes(10_000_000))),
        types.Icon(src=data_uri(png(48, 48), "text/html")),
    ]
    found = icon_of(icons)
    assert found is not None
    assert (found.width, found.media_type) == (48, "image/png")
    assert icon_of(icons[:-1]) is None


@pytest.mark.parametrize("colour", ["#0d5f57", "#000000", "#7a1fa2", "#b00020", "#0000ff"])
def test_accent_has_enough_contrast_on_light_and_dark_pages(colour: str):
    found = accent(colour)
    assert found is not None
    assert found.light == colour
    for ground in ("#ffffff", "#f3f2ee"):
        assert contrast_of(found.light, ground) >= CONTRAST
    for ground in ("#191e1d", "#212826"):
        assert contrast_of(found.dark, ground) >= CONTRAST
    for line in found.style.decode().splitlines():
        colours = dict(part.split(":") for part in line[line.index("--") :].strip("{}").split(";"))
        assert contrast_of(colours["--accent"], colours["--on-accent"]) >= CONTRAST
        assert contrast_of(colours["--accent-over"], colours["--on-accent"]) >= CONTRAST


@pytest.mark.parametrize(
    ("light", "text", "says"),
    [
        ("", "#ffff00", "contrast of 1.0 on light pages, and text needs 4.5. Choose a darker"),
        ("#0d5f57 ", "#101010", "on dark pages, and text needs 4.5. Choose a lighter colour"),
    ],
)
def test_accent_of_low_contrast_is_refused_and_suggested_colour_is_accepted(
    light: str, text: str, says: str
):
    with pytest.raises(ValueError, match=says) as refused:
        accent(light + text)
    _, example = str(refused.value).rstrip(".").split("for example ")
    assert accent(light + example) is not None


@pytest.mark.parametrize(
    "text", ["green", "#fff", ",", "#0d5f57;}body{display:none", "#0d5f57 #86dccd #ffffff"]
)
def test_accent_that_is_not_one_or_two_colours_is_refused(text: str):
    with pytest.raises(ValueError, match="a colour such as #0d5f57"):
        accent(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NAME", "x" * 200),
        ("NAME", "Acme\u202eknab"),
        ("LEGAL_NAME", "x" * 200),
        ("CONTACT", "javascript:alert(1)"),
        ("CONTACT", "a@b.example?subject=x&body=y"),
        ("CONTACT", "a%0abcc@b.example"),
        ("CONTACT", "x" * 250 + "@b.example"),
        ("PRIVACY", "javascript:alert(1)"),
        ("PRIVACY", "http://example.com/privacy"),
        ("PRIVACY", "https://example.com:99999/privacy"),
        ("PRIVACY", "https://example.com/" + "x" * 500),
        ("TERMS", 'https://example.com/"onclick=x'),
        ("TERMS", "https://acme.example@evil.example/"),
        ("LOGO", "/no/such/file.png"),
        ("LOGO", "/dev/zero"),
        ("ACCENT", "#ffff00"),
    ],
)
def test_bad_brand_setting_is_refused_by_its_name(tmp_path: Path, name: str, value: str):
    home = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    with pytest.raises(BadSettings) as refused:
        read_settings({**home, f"ELICIT_BRAND_{name}": value})
    (problem,) = refused.value.problems
    assert problem.startswith(f"ELICIT_BRAND_{name}: ")


# finding: XP12
def test_logo_of_ten_megabytes_is_refused_and_not_read(tmp_path: Path):
    logo = tmp_path / "logo.png"
    with logo.open("wb") as file:
        file.truncate(10_000_000)
    home = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    with pytest.raises(BadSettings, match="the picture has 10,000,000 bytes"):
        read_settings({**home, "ELICIT_BRAND_LOGO": str(logo)})
    logo.write_bytes(png())
    assert read_settings({**home, "ELICIT_BRAND_LOGO": str(logo)}).brand.logo == image_of(png())


def test_brand_name_replaces_name_and_title_of_the_served_server_only():
    class Server:
        title = "Acme tools"
        website_url = "https://acme.example"

    brand = Brand(name="Acme").of("acme", Server())
    assert [brand.shown(name) for name in ("acme", "Acme tools", "other")] == ["Acme"] * 2 + [
        "other"
    ]
    assert brand.website == "https://acme.example"
    assert Brand().of("acme", Server()).shown("acme") == "Acme tools"
    assert Brand().of("acme").shown("acme") == "acme"
