"""Samples of each page: with usual values, and with the worst values that others can supply."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, get_args

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from flows.elicitation.traits import PageName
from tests.support.markup import Page
from tests.support.page_views import (
    CODE,
    DECIDED,
    HOSTILE,
    SIGN_IN,
    USUAL,
    VIEWS,
    VOTED,
    VOTING,
    WAITING,
    Rendered,
    Shown,
    _choice,
    _made,
    hostile_views,
)
from webapp.pages import views as module
from webapp.pages import views_connections, views_payments
from webapp.pages.renderer import Renderer, template_folder
from webapp.pages.views import (
    AccountName,
    DoneAccount,
    Ended,
    Ending,
    Late,
    NotPaid,
    PaymentPending,
    ProviderTrouble,
    Scope,
    StartAccount,
    StartPayment,
    StartUrl,
    SwitchBack,
    Trouble,
    Updates,
    UseAccount,
    Used,
    View,
)
from webapp.pages.views_connections import AccountGroup, ConnectionsPage
from webapp.pages.views_decisions import Decide, InboxPage
from webapp.pages.views_forms import (
    Decided,
    Decision,
    DoneForm,
    DoneSecret,
    StartConfirm,
    StartDecision,
)
from webapp.pages.views_openers import (
    BeforeOpener,
    Closed,
    Paging,
    SecondLook,
    SignedOut,
    SignInFailed,
    SomeoneElse,
    Theirs,
)
from webapp.pages.views_operator import Act, OperatorAct, OperatorList, OperatorRecord

ONLY_NOW = {"can_be_kept": False}  # an approval that cannot be stored


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
    live = Updates(url="/e/abc/live", here="/e/abc", status="accepted")
    leads_on = replace(live, step=1, steps=2, next_url="/e/next", next_kind="payment")
    continued = replace(live, url=None, has_continued=True, step=2, steps=2)
    for done in (module.Done, DoneAccount, module.DonePayment, DoneSecret, DoneForm, Late):
        for name, updates in (("live", live), ("leads on", leads_on), ("continued", continued)):
            views[f"{done.__name__} {name}"] = _made(done, {**USUAL, "updates": updates})
    views["StartUrl live"] = _made(StartUrl, {**USUAL, "updates": live})
    views |= _identity_variants() | _account_variants() | _payment_variants()
    return views | _connection_variants() | _decision_variants() | _operator_variants()


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
        **{
            f"SecondLook {act}": _made(SecondLook, {**USUAL, "act": act})
            for act in ("disconnect", "refund", "revoke")
        },
        "SecondLook unused": _made(SecondLook, {**USUAL, "stopping": ()}),
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
                        owed="3.00 €" if number == 7 else None,
                        disputed="3.00 €" if number == 5 else None,
                        charged_back="3.00 €" if number == 6 else None,
                        is_asked_about=number == 0,
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
            for became in get_args(views_payments.Over)
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


def _decision_variants() -> dict[str, View]:
    nothing: dict[str, Any] = {**USUAL, "lists": (), "approvals": ()}
    own = replace(WAITING, is_own=True, asker=None, client=None, client_id=None)
    return {
        "Decide own": _made(Decide, {**USUAL, "entry": own, "arguments": ()}),
        "Decide votes": _made(Decide, {**USUAL, **VOTING}),
        "Decide delegated": _made(
            Decide, {**USUAL, "entry": replace(VOTED, has_delegated=True), "arguments": ()}
        ),
        "Decide approved": _made(
            Decide, {**USUAL, "entry": replace(VOTED, has_approved=True), "arguments": ()}
        ),
        "StartDecision votes": _made(StartDecision, {**USUAL, "needs": 2, "given": 1}),
        "Decide late": _made(Decide, {**USUAL, "entry": DECIDED, "came_late": True}),
        "Inbox of nobody": _made(InboxPage, {**nothing, "sign_in": None}),
        "Inbox signed out": _made(InboxPage, {**nothing, "sign_out_csrf": None}),
        "Inbox stale": _made(InboxPage, {**nothing, "hidden": "stale"}),
        "Inbox unpaired": _made(InboxPage, {**nothing, "hidden": "unpaired"}),
        **{
            f"Decided {decision}": _made(Decided, {**USUAL, "decision": decision, "reason": None})
            for decision in get_args(Decision)
            if decision != "waiting"
        },
    }


def _operator_variants() -> dict[str, View]:
    plain: dict[str, Any] = {**USUAL, "fault": None, "notice": None, "is_spent": False}
    nothing = {**plain, "lines": (), "paging": Paging()}
    bare = ("facts", "stages", "timeline", "links", "log_lines", "acts")
    return {
        "OperatorList empty": _made(OperatorList, nothing),
        "OperatorList wrong": _made(OperatorList, {**nothing, "wrong": "'x' is not a time."}),
        "OperatorRecord of nothing": _made(
            OperatorRecord, {**plain, **dict.fromkeys(bare, ()), "payload": None}
        ),
        **{
            f"OperatorAct {change}": _made(OperatorAct, {**plain, "change": change})
            for change in get_args(Act)
        },
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
    groups = (group, AccountGroup(name="other tools", connected=others))
    return {
        "Connections of many": _made(ConnectionsPage, {**USUAL, "groups": groups}),
        "Connections of nobody": _made(
            ConnectionsPage, {**USUAL, "groups": (), "sign_out_csrf": None, "viewer": "you"}
        ),
        "Connections of this computer": _made(
            ConnectionsPage, {**USUAL, "sign_out_csrf": None, "sign_in": None}
        ),
        **{
            f"Closed {of} {name}": _made(Closed, {**USUAL, "of": of, "sign_in": button})
            for of in get_args(Theirs)
            for name, button in (("here only", None), ("signed out", SIGN_IN))
        },
        **{
            f"Disconnected {revoked}": _made(
                views_connections.Disconnected, {**USUAL, "revoked": revoked}
            )
            for revoked in (False, None)
        },
    }


def _rendered(views: dict[str, View], pages: Renderer) -> Rendered:
    rendered: dict[str, tuple[View, Page]] = {}
    for name, view in views.items():
        try:
            rendered[name] = view, Page(pages.render(view))
        except Exception as error:
            error.add_note(f"This is the page {name!r}.")
            raise
    return rendered


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test of the browser each page in turn. Tests without a browser loop over them."""
    if "usual_view" in metafunc.fixturenames:
        views = _variants()
        metafunc.parametrize("usual_view", list(views.values()), ids=list(views))


@pytest.fixture(scope="session")
def pages() -> Renderer:
    return Renderer(folders=[template_folder()])


@pytest.fixture(scope="session")
def shown(pages: Renderer) -> Shown:
    return lambda view: Page(pages.render(view))


@pytest.fixture(scope="session")
def usual_pages(pages: Renderer) -> Rendered:
    return _rendered(_variants(), pages)


@pytest.fixture(scope="session")
def hostile_pages(pages: Renderer) -> Rendered:
    views = {key: view for name in HOSTILE for key, view in hostile_views(name).items()}
    return _rendered(views, pages)


@pytest.fixture(scope="session")
def all_pages(usual_pages: Rendered, hostile_pages: Rendered) -> Rendered:
    return {**usual_pages, **hostile_pages}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        await started.close()
