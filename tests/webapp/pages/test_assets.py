"""The stylesheet and the script: small, and accessible in both color schemes."""

import re
from pathlib import Path

import pytest

from webapp.pages import renderer as pages

STATIC = Path(pages.__file__).parent / "static"
SHEET = (STATIC / "elicit.css").read_text()

TEXT, PART = 7.0, 3.0  # WCAG 2.2: 1.4.6 for text (AAA), 1.4.11 for borders and symbols
PAIRS = [
    *((ink, paper, TEXT) for ink in ("text", "muted") for paper in ("surface", "ground", "raised")),
    ("on-accent", "accent", TEXT),
    ("on-accent", "accent-over", TEXT),
    ("on-danger", "danger", TEXT),
    ("on-danger", "danger-over", TEXT),
    *(("accent", paper, TEXT) for paper in ("surface", "ground", "raised")),
    *(
        (tone, paper, TEXT)
        for tone in ("good", "warn", "danger")
        for paper in ("surface", "ground")
    ),
    *((tone, f"{tone}-ground", TEXT) for tone in ("good", "warn", "danger")),
    *(("text", f"{tone}-ground", TEXT) for tone in ("good", "warn", "danger")),
    *(("accent", f"{tone}-ground", TEXT) for tone in ("good", "warn", "danger")),
    *(("muted", f"{tone}-ground", TEXT) for tone in ("good", "warn", "danger")),
    *((edge, paper, PART) for edge in ("edge", "accent") for paper in ("surface", "ground")),
    ("edge", "raised", PART),
    ("warn", "raised", TEXT),
]


def _colours(scheme: str) -> dict[str, str]:
    roots = re.findall(r":root\s*\{([^}]*)\}", SHEET)
    light, dark = (dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", root)) for root in roots)
    assert light.keys() == dark.keys()
    return light if scheme == "light" else dark


def _luminance(colour: str) -> float:
    """Return the relative luminance (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("ink", "paper", "least"), PAIRS)
def test_colors_have_sufficient_contrast(scheme: str, ink: str, paper: str, least: float) -> None:
    # finding: XP15
    colours = _colours(scheme)
    darker, lighter = sorted([_luminance(colours[ink]), _luminance(colours[paper])])
    assert (lighter + 0.05) / (darker + 0.05) >= least


def test_colors_are_defined_once() -> None:
    rules = SHEET[SHEET.index("*, ::before") :]
    assert not re.search(r"#[0-9a-f]{3,8}\b|rgb\(", rules)


def test_assets_are_small_and_load_nothing() -> None:
    script = (STATIC / "elicit.js").read_text()
    assert len(SHEET.encode()) < 16_000
    assert len(script.encode()) < 6_700
    assert "url(" not in SHEET
    assert "@import" not in SHEET
    assert "//" not in re.sub(r"^\s*//.*$", "", script, flags=re.MULTILINE)
    assert len((STATIC / "icon.svg").read_bytes()) < 1_000
