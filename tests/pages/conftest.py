"""One of each page: as it usually is, and with the worst that others may put into it."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from webapp.pages import (
    BadRequest,
    BeforeOpener,
    Done,
    Ended,
    Ending,
    Home,
    Kind,
    Late,
    NoCookie,
    NotFound,
    Pages,
    SomeoneElse,
    StartUrl,
    TooMany,
    Trouble,
    Unknown,
    Used,
    View,
    Waiting,
    template_folder,
)

NOW = datetime(2025, 11, 21, 21, 30, tzinfo=UTC)

USUAL: Mapping[str, Any] = {
    "server": "my tools",
    "host": "tools.example.com",
    "tool": "book_a_table",
    "message": "Please confirm the table for four at 19:30.\nIt is held for ten minutes.",
    "origins": ("https://example.org",),
    "asked_at": NOW - timedelta(seconds=12),
    "now": NOW,
    "expires_at": NOW + timedelta(minutes=4, seconds=30),
    "continue_action": "/e/abc/go",
    "decline_action": "/e/abc/decline",
    "again_action": "/e/abc/go",
    "live_url": "/e/abc/live",
    "here_url": "/e/abc",
    "again_url": "/e/abc",
    "csrf": "c5f1",
    "client": "Claude",
    "status": "opened",
    "kind": "url",
    "why": "This link works only for the person who uses this computer, in a browser on it.",
    "ending": "expired",
    "other": "person",
    "error_id": "7f3a-91c2",
    "problem": "The form was sent without the mark that this page puts into it.",
    "mcp_url": "https://tools.example.com/mcp",
    "tools": (("book_a_table", "Book a table at a restaurant."), ("weather", "Tell the weather.")),
}

VIEWS: tuple[type[View], ...] = (
    StartUrl,
    BeforeOpener,
    Waiting,
    Done,
    Late,
    NoCookie,
    Ended,
    Used,
    SomeoneElse,
    Unknown,
    TooMany,
    Trouble,
    NotFound,
    BadRequest,
    Home,
)

HOSTILE: Mapping[str, str] = {
    "markup": "<script>alert(1)</script><a href='https://evil.example'>\"'<img src=x onerror=go()>",
    "address": "javascript:alert(1) https://evil.example/?a=1&b=2 www.evil.example 555-0100",
    "endless": "W" * 10_000,
    "many lines": "line\n" * 2_000,
    "reversed": "\u202ehello\u2066 \u200f\x00\x1b[31m \ud800 \U000e0041",
    "stacked": "a" + "\u0301" * 400,
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈" * 60,
    "template": "{{ view.csrf }}{% raw %}",
    "empty": "",
}


def _made(view: type[View], values: Mapping[str, Any]) -> View:
    return view(**{field.name: values[field.name] for field in fields(view)})


def _variants() -> dict[str, View]:
    views = {view.__name__: _made(view, USUAL) for view in VIEWS}
    for ending in get_args(Ending):
        views[f"Ended {ending}"] = Ended(server="my tools", ending=ending)
    for kind in get_args(Kind):
        views[f"BeforeOpener {kind}"] = BeforeOpener(server="my tools", kind=kind, why="Sign in.")
    views["SomeoneElse browser"] = SomeoneElse(server="my tools", other="browser")
    views["StartUrl several"] = _made(
        StartUrl,
        {
            **USUAL,
            "client": None,
            "origins": ("https://example.org:8443", "https://bücher.example"),
        },
    )
    views["StartUrl without a message"] = _made(StartUrl, {**USUAL, "message": ""})
    views["Trouble without a way on"] = _made(Trouble, {**USUAL, "again_url": None})
    return views


def hostile_views(name: str) -> dict[str, View]:
    """Every page with the same bad words wherever others may choose them."""
    words = {"server", "host", "tool", "message", "client", "why", "error_id", "problem", "mcp_url"}
    text = HOSTILE[name]
    others: dict[str, Any] = dict.fromkeys(words, text)
    others |= {"origins": (text,), "tools": ((text, text),)}
    return {f"{view.__name__} {name}": _made(view, {**USUAL, **others}) for view in VIEWS}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test `usual_view`, `hostile_view` or, for both, `any_view` in turn."""
    hostile = {key: view for name in HOSTILE for key, view in hostile_views(name).items()}
    samples = {"usual_view": _variants(), "hostile_view": hostile}
    samples["any_view"] = samples["usual_view"] | samples["hostile_view"]
    for name, views in samples.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, list(views.values()), ids=list(views))


@pytest.fixture(scope="session")
def pages() -> Pages:
    return Pages(folders=[template_folder()])
