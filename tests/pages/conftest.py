"""One of each page: as it usually is, and with the worst that others may put into it."""

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from flows.elicitation.traits import PageName
from flows.elicitation.user_code import PAGE_WORDS
from flows.schema.schema import schema_of
from webapp.pages import views as module
from webapp.pages import views_connections, views_home, views_payments
from webapp.pages import views_forms as views_typed
from webapp.pages.form import form_of
from webapp.pages.renderer import Renderer, template_folder
from webapp.pages.views import (
    AccountName,
    BeforeOpener,
    Choice,
    CodeButton,
    DoneAccount,
    Ended,
    Ending,
    Late,
    NotPaid,
    PaymentPending,
    ProviderTrouble,
    Scope,
    SignedOut,
    SignInButton,
    SignInFailed,
    SomeoneElse,
    StartAccount,
    StartPayment,
    StartUrl,
    SwitchBack,
    Trouble,
    UseAccount,
    Used,
    View,
)
from webapp.pages.views_connections import Assistant, Connected, ConnectionsPage, Group, Sharing
from webapp.pages.views_forms import Argument, DoneForm, DoneSecret, StartConfirm

NOW = datetime(2025, 11, 21, 21, 30, tzinfo=UTC)
SIGN_IN = SignInButton(action="/signin", back="/e/abc", csrf="c5f1", issuer="login.example.com")
CODE = CodeButton(action="/e/abc/code", csrf="c5f1")

USUAL: Mapping[str, Any] = {
    "server": "my tools",
    "is_otherwise": False,
    "is_closed": False,
    "trouble": "silent",
    "is_payment": True,
    "of": "payments",
    "returned": "3.00 €",
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
    "client_id": "https://assistant.example/client",
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
    "person": AccountName(label="octocat", name="Mona Lisa Octocat"),
    "choices": (
        Choice(
            person=AccountName(label="octocat", name="Mona Lisa Octocat"),
            connected_for=("list_my_repositories", "count_stars"),
            scopes=(Scope(words="Read and write your repositories", raw="repo"),),
            allow_action="/e/abc/allow",
        ),
    ),
    "switch_back": SwitchBack(
        former=AccountName(label="hubber"), action="/e/abc/allow?account=h", csrf="c5f1"
    ),
    "other_action": "/e/abc/other",
    "price": "9.00 €",
    "what": "Premium report, with all figures since 2019",
    "seller": "Stripe",
    "is_test": True,
    "receipt": "rcp_4Qm2ZkT9",
    "kept": True,
    "form": form_of(
        schema_of(
            {
                "type": "object",
                "properties": {
                    "note": {"type": "string", "description": "For the kitchen."},
                    "outside": {"type": "boolean"},
                },
                "required": ["note"],
            }
        )
    ),
    "name": "door",
    "arguments": (Argument(name="guests", value="4"), Argument(name="at", value="19:30")),
    "is_gate": True,
    "can_be_kept": True,
    "is_approved": True,
    "is_by_model": False,
    "remove_at": "https://github.com/settings/applications",
    "sandbox_url": "http://127.0.0.1:8766",
    "action": "/pair/abc",
    "issuer": "login.example.com",
    "sign_in": SIGN_IN,
    "code": CODE,
    "signed_in_as": "Mona Lisa Octocat",
    "letters": "BCDF-GHJK",
    "words": PAGE_WORDS,
    "wait": timedelta(seconds=30),
    "viewer": "Mona Lisa Octocat",
    "sign_out_csrf": "c5f1",
    "groups": (
        Group(
            name="my tools",
            connected=(
                Connected(
                    id="x1",
                    provider="GitHub",
                    person=AccountName(label="octocat", name="Mona Lisa Octocat"),
                    connected_at=NOW - timedelta(days=3),
                    scopes=(Scope(words="Read and write your repositories", raw="repo"),),
                    shared=(
                        Sharing(
                            tool="list_my_repositories",
                            used_at=NOW - timedelta(minutes=5),
                            stop_action="/connections/x1/unshare?tool=list_my_repositories",
                        ),
                        Sharing(
                            tool="count_stars",
                            used_at=None,
                            stop_action="/connections/x1/unshare?tool=count_stars",
                        ),
                    ),
                    standing="works",
                    csrf="c5f1",
                    disconnect_action="/connections/x1/disconnect",
                    keep_action="/connections/x1/keep",
                    clients=(
                        Assistant(key="k1", name="Claude", id=None, may_use=True),
                        Assistant(key="k2", name="", id="https://app.example", may_use=False),
                    ),
                ),
            ),
        ),
    ),
    "by_code": True,
    "account": "octocat",
    "revoked": True,
    "left_out": (Scope(words="Make gists", raw="gist"),),
    "is_late": False,
    "is_for_a_tool": True,
    "manage": "https://github.com/settings/applications",
    "became": "refunded",
    "because": "taken",
    "payments": (
        views_payments.Paid(
            id="p1",
            price="9.00 €",
            what="Premium report",
            tool="report",
            seller="Stripe",
            paid_at=NOW - timedelta(hours=3),
            standing="open",
            csrf="c5f1",
            is_test=True,
            back_on=NOW + timedelta(days=6),
            refund_action="/payments/p1/refund",
        ),
    ),
    "tools": (("book_a_table", "Book a table at a restaurant."), ("weather", "Tell the weather.")),
}

# Every page there is: a new one is in every test of this folder by being in the module.
VIEWS: tuple[type[View], ...] = tuple(
    view
    for found in (module, views_connections, views_home, views_payments, views_typed)
    for view in vars(found).values()
    if isinstance(view, type) and issubclass(view, View) and hasattr(view, "template")
)

ONLY_NOW = {"can_be_kept": False}  # a yes of which nothing is kept
CHOSEN_BY_OTHERS = (
    *(
        "server",
        "host",
        "tool",
        "message",
        "client",
        "client_id",
        "why",
        "error_id",
        "problem",
        "mcp_url",
    ),
    *("provider", "place", "reason", "price", "what", "seller", "receipt", "remove_at"),
    *("sandbox_url", "issuer", "signed_in_as", "viewer", "account", "returned"),
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
    for kind in get_args(PageName):
        before = BeforeOpener(server="my tools", kind=kind, why="Open it on that computer.")
        views[f"BeforeOpener {kind}"] = before
        views[f"BeforeOpener {kind} code"] = replace(before, code=CODE)
        views[f"BeforeOpener {kind} sign-in"] = replace(before, sign_in=SIGN_IN)
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
    views["StartConfirm by a tool"] = _made(StartConfirm, {**USUAL, "is_gate": False, **ONLY_NOW})
    by_name = {**USUAL, "client_id": None}
    views["StartConfirm by name"] = _made(StartConfirm, by_name)
    views["StartConfirm by nobody"] = _made(StartConfirm, {**by_name, "client": None})
    views["StartConfirm by id"] = _made(StartConfirm, {**USUAL, "client": None})
    views["StartConfirm once"] = _made(StartConfirm, {**USUAL, **ONLY_NOW})
    views["StartConfirm of nothing"] = _made(StartConfirm, {**USUAL, "arguments": ()})
    views["DoneForm sent"] = DoneForm(server="my tools", is_approved=False)
    views["DoneForm by model"] = DoneForm(server="my tools", is_approved=False, is_by_model=True)
    views |= _identity_variants() | _account_variants() | _payment_variants()
    return views | _connection_variants()


def _identity_variants() -> dict[str, View]:
    alone: dict[str, Any] = {**USUAL, "sign_in": None}
    return {
        **{
            f"SignInFailed {why}": _made(SignInFailed, {**USUAL, "why": why})
            for why in ("refused", "trouble", "mixed")
        },
        "SignInFailed alone": _made(
            SignInFailed, {**alone, "why": "refused", "issuer": "", "error_id": None}
        ),
        "SignedOut nowhere else": SignedOut(server="my tools", issuer=None),
        "SomeoneElse switch": _made(
            SomeoneElse, {**USUAL, "sign_in": replace(SIGN_IN, switch=True)}
        ),
        "SomeoneElse alone": SomeoneElse(server="my tools", other="person"),
    }


def _account_variants() -> dict[str, View]:
    plain = {**USUAL, "is_sandbox": False}
    many = tuple(Scope(words=f"Do the thing number {n}", raw=f"thing:{n}") for n in range(20))
    return {
        "StartAccount for real": _made(StartAccount, {**plain, "reason": None}),
        "StartAccount who only": _made(StartAccount, {**plain, "scopes": (), "client": None}),
        "StartAccount twenty scopes": _made(StartAccount, {**plain, "scopes": many}),
        "StartAccount long reason": _made(StartAccount, {**plain, "reason": "because it is " * 40}),
        "UseAccount for real": _made(
            UseAccount, {**plain, "choices": (_choice(connected_for=("one",)),)}
        ),
        "UseAccount unnamed": _made(
            UseAccount, {**plain, "choices": (_choice(person=AccountName(label="octocat")),)}
        ),
        "UseAccount several": _made(
            UseAccount,
            {**USUAL, "choices": (_choice(), _choice(person=AccountName(label="hubber")))},
        ),
        "UseAccount kept to some": _made(
            UseAccount, {**plain, "choices": (_choice(is_kept_to_some=True),)}
        ),
        "UseAccount by name": _made(UseAccount, {**USUAL, "other_action": None}),
        "DoneAccount for real": _made(DoneAccount, {**plain, "switch_back": None}),
        "DoneAccount switched back": _made(
            DoneAccount,
            {**USUAL, "switch_back": SwitchBack(former=AccountName(label="hubber"), is_done=True)},
        ),
        "DoneAccount without a way back": _made(
            DoneAccount, {**USUAL, "switch_back": SwitchBack(former=AccountName(label="hubber"))}
        ),
        "DoneSecret wiped": DoneSecret(server="my tools", kept=False),
        "Used here": Used(server="my tools"),
        "ProviderTrouble by a link": _made(ProviderTrouble, {**USUAL, "again_action": None}),
        "ProviderTrouble loaded again": _made(ProviderTrouble, {**USUAL, "error_id": None}),
        "ProviderTrouble refused": _made(ProviderTrouble, {**USUAL, "trouble": "refused"}),
        "ProviderTrouble not set up": _made(ProviderTrouble, {**USUAL, "trouble": "not set up"}),
        "ProviderTrouble without a way on": _made(
            ProviderTrouble, {**USUAL, "again_action": None, "again_url": None}
        ),
        **{
            f"Ended {ending} account": _made(Ended, {**USUAL, "ending": ending, "kind": "account"})
            for ending in get_args(Ending)
        },
    }


def _choice(**changes: Any) -> Choice:
    (choice,) = USUAL["choices"]
    changed: Choice = replace(choice, **changes)
    return changed


def _payment_variants() -> dict[str, View]:
    real = {**USUAL, "is_test": False}
    return {
        "StartPayment for real": _made(StartPayment, {**real, "client": None}),
        "DonePayment for real": _made(module.DonePayment, real),
        "PaymentPending for real": _made(PaymentPending, real),
        "NotPaid for real": _made(NotPaid, real),
        "NotPaid closed": _made(NotPaid, {**USUAL, "is_closed": True}),
        "PaymentPending otherwise": _made(PaymentPending, {**USUAL, "is_otherwise": True}),
        **{
            f"Ended {ending} payment": Ended(server="my tools", ending=ending, kind="payment")
            for ending in get_args(Ending)
        },
        "Payments of all kinds": _made(
            views_payments.PaymentsPage,
            {
                **USUAL,
                "payments": tuple(
                    replace(
                        one,
                        id=f"p{number}",
                        standing=standing,
                        is_test=number == 2,
                        returned="3.00 €" if number == 3 else None,
                        refund_action=None,
                    )
                    for one in USUAL["payments"]
                    for number, standing in enumerate(get_args(views_payments.Standing))
                ),
            },
        ),
        "Payments of nobody": _made(
            views_payments.PaymentsPage, {**USUAL, "payments": (), "sign_out_csrf": None}
        ),
        **{
            f"PaymentOver {became}": _made(views_payments.PaymentOver, {**real, "became": became})
            for became in ("refunding", "disputed")
        },
        **{
            f"NotGivenBack {because}": _made(
                views_payments.NotGivenBack, {**USUAL, "because": because}
            )
            for because in get_args(views_payments.Stays)
        },
        **{f"Late {kind}": _made(Late, {**real, "kind": kind}) for kind in ("account", "payment")},
        "Late payment as a test": _made(Late, {**USUAL, "kind": "payment", "returned": None}),
        "DonePayment whole": _made(module.DonePayment, {**USUAL, "returned": None}),
    }


def _connection_variants() -> dict[str, View]:
    (group,) = USUAL["groups"]
    (one,) = group.connected
    others = (
        replace(one, id="x6", is_kept_to_some=True),
        replace(one, id="x2", is_in_use=True, is_sandbox=True, person=AccountName(label="hubber")),
        replace(one, id="x3", is_in_use=False, switch_action="/connections/x3/switch", shared=()),
        replace(one, id="x4", standing="over", scopes=()),
        replace(one, id="x5", standing="unused", scopes=None),
    )
    groups = (group, Group(name="other tools", connected=others))
    return {
        "Connections of many": _made(ConnectionsPage, {**USUAL, "groups": groups}),
        "Connections of nobody": _made(
            ConnectionsPage, {**USUAL, "groups": (), "sign_out_csrf": None, "viewer": "you"}
        ),
        "Connections of this computer": _made(
            ConnectionsPage, {**USUAL, "sign_out_csrf": None, "sign_in": None}
        ),
        **{
            f"Closed {of} {name}": _made(module.Closed, {**USUAL, "of": of, "sign_in": button})
            for of in get_args(module.Theirs)
            for name, button in (("here only", None), ("signed out", SIGN_IN))
        },
        **{
            f"Disconnected {revoked}": _made(
                views_connections.Disconnected, {**USUAL, "revoked": revoked}
            )
            for revoked in (False, None)
        },
    }


def _hostile_groups(text: str) -> tuple[Group, ...]:
    (group,) = USUAL["groups"]
    (one,) = group.connected
    worst = replace(
        one,
        provider=text,
        person=AccountName(label=text, name=text + "."),
        scopes=(Scope(words=text + ".", raw=text),) * 2,
        shared=tuple([replace(sharing, tool=text) for sharing in one.shared]),
        clients=tuple([replace(each, name=text, id=text) for each in one.clients]),
    )
    return (Group(name=text, connected=(worst,)),)


def hostile_views(name: str) -> dict[str, View]:
    """Every page with the same bad words wherever others may choose them."""
    text = HOSTILE[name]
    others: dict[str, Any] = dict.fromkeys(CHOSEN_BY_OTHERS, text)
    others |= {"origins": (text,), "tools": ((text, text),)}
    others |= {"scopes": (Scope(words=text + ".", raw=text),) * 2}
    paid = [
        replace(one, price=text, what=text, tool=text, seller=text) for one in USUAL["payments"]
    ]
    others |= {"payments": tuple(paid)}
    person = AccountName(label=text, name=text + ".")
    others |= {"person": person, "switch_back": replace(USUAL["switch_back"], former=person)}
    others |= {"choices": (_choice(person=person, connected_for=(text, text)),) * 2}
    others |= {"sign_in": replace(SIGN_IN, issuer=text)}
    others |= {"groups": _hostile_groups(text)}
    others |= {"arguments": (Argument(name=text, value=text + "."),) * 2}
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
def pages() -> Renderer:
    return Renderer(folders=[template_folder()])
