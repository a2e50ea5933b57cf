"""The pictures of pages in README and docs: current, small, and shown."""

import json
import re
import struct

import pytest

from tests.page_pictures import AT_MOST, FOLDER, HASHES, PICTURED, SCHEMES, hashes

DOCS = FOLDER.parent
README = DOCS.parent / "README.md"
SHOWN_ON = {
    "account": README,
    "payment": DOCS / "how-to" / "payments.md",
    "approval": DOCS / "how-to" / "approvals.md",
    "operator": DOCS / "how-to" / "operating.md",
}


@pytest.mark.parametrize("name", PICTURED)
def test_picture_shows_the_page_as_it_is_now(name: str) -> None:
    # finding: XP12
    written = json.loads(HASHES.read_text("utf-8"))
    assert written.keys() == PICTURED.keys()
    assert written[name] == hashes()[name], (
        "the page has changed: run `make pictures`, and commit the pictures"
    )


def test_pictures_are_small_pngs_of_the_named_pages() -> None:
    files = {path.name: path.read_bytes() for path in FOLDER.glob("*.png")}
    assert files.keys() == {f"{name}-{scheme}.png" for name in PICTURED for scheme in SCHEMES}
    assert sum(map(len, files.values())) <= AT_MOST
    for name, content in files.items():
        width, height = struct.unpack_from(">II", content, 16)
        assert (width > 600, height > 500) == (True, True), name


@pytest.mark.parametrize("name", PICTURED)
def test_documentation_shows_picture_in_both_schemes_with_alternative_text(name: str) -> None:
    page = SHOWN_ON[name]
    text = page.read_text("utf-8")
    folder = "docs/pictures" if page == README else "../pictures"
    assert f'srcset="{folder}/{name}-dark.png"' in text
    (alternative,) = re.findall(rf'<img src="{folder}/{name}-light.png"[^>]* alt="([^"]+)">', text)
    assert len(alternative) > 40


def test_first_screen_of_readme_has_a_picture() -> None:
    before, _, _ = README.read_text("utf-8").partition("<picture>")
    assert len(before.splitlines()) < 25
