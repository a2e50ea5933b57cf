"""One of each page: as it usually is, and with the worst that others may put into it."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from webapp import views as module
from webapp.pages import Pages, template_folder
from webapp.views import (
    BeforeOpener,
    DoneAccount,
    DoneSecret,
    Ended,
    Ending,
    Kind,
    Late,
    PaymentPending,
    Person,
    ProviderTrouble,
    Scope,
    SomeoneElse,
    StartAccount,
    StartPayment,
    StartUrl,
    Trouble,
    UseAccount,
    Used,
    View,
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
    "provider": "GitHub",
    "place": "https://github.com",
    "scopes": (
        Scope(words="Read and write your repositories", raw="repo"),
        Scope(words="See your e-mail addresses", raw="user:email"),
    ),
    "reason": "To list the repositories that you can push to.",
    "is_sandbox": True,
    "person": Person(label="octocat", name="Mona Lisa Octocat"),
    "connected_for": ("list_my_repositories", "count_stars"),
    "allow_action": "/e/abc/allow",
    "other_action": "/e/abc/other",
    "price": "9.00 €",
    "what": "Premium report, with all figures since 2019",
    "seller": "Stripe",
    "is_test": True,
    "receipt": "rcp_4Qm2ZkT9",
    "kept": True,
    "remove_at": "https://github.com/settings/applications",
    "sandbox_url": "http://127.0.0.1:8766",
    "tools": (("book_a_table", "Book a table at a restaurant."), ("weather", "Tell the weather.")),
}

# Every page there is: a new one is in every test of this folder by being in the module.
VIEWS: tuple[type[View], ...] = tuple(
    view
    for view in vars(module).values()
    if isinstance(view, type) and issubclass(view, View) and hasattr(view, "template")
)

CHOSEN_BY_OTHERS = (
    *("server", "host", "tool", "message", "client", "why", "error_id", "problem", "mcp_url"),
    *("provider", "place", "reason", "price", "what", "seller", "receipt", "remove_at"),
    "sandbox_url",
)
HOSTILE: Mapping[str, str] = {
    "markup": "<script>alert(1)</script><a href='https://evil.example'>\"'<img src=x onerror=go()>",
    "address": "javascript:alert(1) https://evil.example/?a=1&b=2 www.evil.example 555-0100",
    "endless": "W" * 10_000,
    "many lines": "line\n" * 2_000,
    "reversed": "\u202ehello\u2066 \u200f\x00\x1b[31m \ud800 \U000e0041",
    "stacked": "a" + "\u0301" * 400,
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈" * 60,
    "right to left": "مستودعاتي الخاصة שלום " * 12,
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
    return views | _account_variants() | _payment_variants()


def _account_variants() -> dict[str, View]:
    plain = {**USUAL, "is_sandbox": False}
    many = tuple(Scope(words=f"Do the thing number {n}", raw=f"thing:{n}") for n in range(20))
    return {
        "StartAccount for real": _made(StartAccount, {**plain, "reason": None}),
        "StartAccount who only": _made(StartAccount, {**plain, "scopes": (), "client": None}),
        "StartAccount twenty scopes": _made(StartAccount, {**plain, "scopes": many}),
        "StartAccount long reason": _made(StartAccount, {**plain, "reason": "because it is " * 40}),
        "UseAccount for real": _made(UseAccount, {**plain, "connected_for": ("one",)}),
        "UseAccount unnamed": _made(
            UseAccount, {**plain, "person": Person(label="octocat"), "connected_for": ()}
        ),
        "DoneAccount for real": _made(DoneAccount, plain),
        "DoneSecret wiped": DoneSecret(server="my tools", kept=False),
        "Used here": Used(server="my tools"),
        "ProviderTrouble by a link": _made(ProviderTrouble, {**USUAL, "again_action": None}),
        "ProviderTrouble without a way on": _made(
            ProviderTrouble, {**USUAL, "again_action": None, "again_url": None}
        ),
        **{
            f"Ended {ending} account": _made(Ended, {**USUAL, "ending": ending, "kind": "account"})
            for ending in get_args(Ending)
        },
    }


def _payment_variants() -> dict[str, View]:
    real = {**USUAL, "is_test": False}
    return {
        "StartPayment for real": _made(StartPayment, {**real, "client": None}),
        "DonePayment for real": _made(module.DonePayment, real),
        "PaymentPending for real": _made(PaymentPending, real),
        **{
            f"Ended {ending} payment": Ended(server="my tools", ending=ending, kind="payment")
            for ending in get_args(Ending)
        },
        **{f"Late {kind}": Late(server="my tools", kind=kind) for kind in ("account", "payment")},
    }


def hostile_views(name: str) -> dict[str, View]:
    """Every page with the same bad words wherever others may choose them."""
    text = HOSTILE[name]
    others: dict[str, Any] = dict.fromkeys(CHOSEN_BY_OTHERS, text)
    others |= {"origins": (text,), "tools": ((text, text),), "connected_for": (text, text)}
    others |= {"scopes": (Scope(words=text + ".", raw=text),) * 2}
    others |= {"person": Person(label=text, name=text + ".")}
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
