"""The states of all pages, by name."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, get_args

from flows.elicitation.states import Json
from flows.elicitation.traits import PageName
from flows.schema.schema import Fault, schema_of
from flows.shown import Argument
from tests.support.page_views import (
    CODE,
    DECIDED,
    NOW,
    SEVERAL_ISSUERS,
    SIGN_IN,
    TOOL_NAMES,
    USUAL,
    VIEWS,
    VOTED,
    VOTING,
    WAITING,
    choice,
    made,
    usual,
)
from webapp.pages import views as module
from webapp.pages import views_own
from webapp.pages.form import form_of
from webapp.pages.views import (
    AccountName,
    DoneAccount,
    Ended,
    Ending,
    Late,
    NoCookie,
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
from webapp.pages.views_forms import (
    ActivityPage,
    Decide,
    Decided,
    Decision,
    DoneForm,
    DoneSecret,
    InboxPage,
    StartConfirm,
    StartDecision,
    StartForm,
    StartSecret,
)
from webapp.pages.views_openers import (
    BeforeOpener,
    Closed,
    Paging,
    PersonsPage,
    SecondLook,
    SignedOut,
    SignInFailed,
    SignInFault,
    SomeoneElse,
)
from webapp.pages.views_operator import Act, OperatorAct, OperatorList, OperatorRecord
from webapp.pages.views_own import AccountGroup, ConnectionsPage, TeamUse

# Start pages with four scopes, fields or arguments: the main button has to be on the first screen.
LABEL = {"type": "string", "description": "Find it at the service, under Settings."}
FOUR = form_of(
    schema_of(
        {
            "type": "object",
            "properties": dict.fromkeys(("name", "street", "city", "country"), LABEL),
            "required": ["name"],
        }
    )
)
SCOPES = tuple(
    Scope(words=f"Read and change all your {thing}", raw=f"{thing}:write")
    for thing in ("repositories", "teams", "packages", "e-mail addresses")
)
RISKS = (
    Scope(words="Delete repositories", raw="delete_repo", risk="delete"),
    Scope(words="Read and change all your repositories", raw="repo", risk="write"),
    Scope(words="See your e-mail addresses", raw="user:email"),
)
ARGUMENTS = tuple(
    Argument(name=name, value="acme/website") for name in ("repo", "into", "as", "by")
)
ASKING: dict[str, View] = {
    "account": usual(StartAccount, scopes=SCOPES),
    "one account": usual(UseAccount, choices=(choice(scopes=SCOPES),)),
    "payment": usual(StartPayment),
    "secret": usual(StartSecret, form=FOUR),
    "form": usual(StartForm, form=FOUR, arguments=()),
    "url": usual(StartUrl),
    "gate": usual(StartConfirm, arguments=ARGUMENTS, message="Run delete_repo?"),
    "decision": usual(Decide, arguments=ARGUMENTS),
}
CONTROLS: dict[str, Json] = {
    "mail": {"type": "string", "format": "email", "title": "E-mail", "description": "For a copy."},
    "day": {"type": "string", "format": "date", "title": "Day"},
    "when": {"type": "string", "format": "date-time", "title": "Start"},
    "seats": {"type": "integer", "title": "Seats", "default": 4},
    "of": {"type": "string", "enum": ["window", "garden"], "title": "Table"},
    "extras": {
        "type": "array",
        "title": "Extras",
        "items": {
            "type": "string",
            "enum": ["high chair", "cake", "far from the bar"],
        },
    },
    "outside": {"type": "boolean", "title": "Outside is fine"},
    "note": {"type": "string", "format": "multiline", "title": "Note", "maxLength": 2000},
}
AT_GITHUB = "https://github.com/settings/applications"
ONLY_NOW = {"can_be_stored": False}  # an approval that cannot be stored


def page_states() -> dict[str, View]:
    """Return a view of each state of each page."""
    views = {view.__name__: made(view, USUAL) for view in VIEWS}
    for ending in get_args(Ending):
        views[f"Ended {ending}"] = Ended(server="my tools", ending=ending)
    for kind in get_args(PageName):
        before = BeforeOpener(server="my tools", kind=kind, why="Open it on that computer.")
        views[f"BeforeOpener {kind}"] = before
        views[f"BeforeOpener {kind} code"] = replace(before, code=CODE)
        views[f"BeforeOpener {kind} sign-in"] = replace(before, sign_in=SIGN_IN)
        views[f"BeforeOpener {kind} issuers"] = replace(before, sign_in=SEVERAL_ISSUERS)
    views["SomeoneElse browser"] = SomeoneElse(server="my tools", other="browser")
    views["StartUrl several"] = made(
        StartUrl,
        {
            **USUAL,
            "client": None,
            "origins": ("https://example.org:8443", "https://bücher.example"),
        },
    )
    views["StartUrl without a message"] = made(StartUrl, {**USUAL, "message": ""})
    views["Trouble without a way on"] = made(Trouble, {**USUAL, "again_url": None})
    views["StartConfirm by a tool"] = made(StartConfirm, {**USUAL, "is_gate": False, **ONLY_NOW})
    by_name = {**USUAL, "client_id": None}
    views["StartConfirm by name"] = made(StartConfirm, by_name)
    views["StartConfirm by nobody"] = made(StartConfirm, {**by_name, "client": None})
    views["StartConfirm by id"] = made(StartConfirm, {**USUAL, "client": None})
    views["StartConfirm once"] = made(StartConfirm, {**USUAL, **ONLY_NOW})
    views["StartConfirm of nothing"] = made(StartConfirm, {**USUAL, "arguments": ()})
    views["DoneForm sent"] = DoneForm(server="my tools", is_approved=False)
    views["DoneForm by model"] = DoneForm(server="my tools", is_approved=False, is_by_model=True)
    live = Updates(url="/e/abc/live", here="/e/abc", status="accepted")
    leads_on = replace(live, step=1, steps=2, next_url="/e/next", next_kind="payment")
    continued = replace(live, url=None, has_continued=True, step=2, steps=2)
    for done in (module.Done, DoneAccount, module.DonePayment, DoneSecret, DoneForm, Late):
        for name, updates in (("live", live), ("leads on", leads_on), ("continued", continued)):
            views[f"{done.__name__} {name}"] = made(done, {**USUAL, "updates": updates})
    views["StartUrl live"] = made(StartUrl, {**USUAL, "updates": live})
    views |= _identity_variants() | _account_variants() | _payment_variants() | _form_variants()
    return views | _connection_variants() | _decision_variants() | _operator_variants()


def _identity_variants() -> dict[str, View]:
    alone: dict[str, Any] = {**USUAL, "sign_in": None}
    return {
        **{
            f"SignInFailed {why}": made(SignInFailed, {**USUAL, "why": why})
            for why in get_args(SignInFault)
        },
        "SignInFailed alone": made(
            SignInFailed, {**alone, "why": "refused", "issuer": "", "error_id": None}
        ),
        "SignedOut nowhere else": SignedOut(server="my tools", issuer=None),
        "SignedOut without a form": SignedOut(server="my tools", issuer="login.example.com"),
        "SomeoneElse switch": made(
            SomeoneElse, {**USUAL, "sign_in": replace(SIGN_IN, switch=True)}
        ),
        "SomeoneElse alone": SomeoneElse(server="my tools", other="person"),
        **{
            f"SecondLook {act}": made(SecondLook, {**USUAL, "act": act})
            for act in ("disconnect", "refund", "revoke")
        },
        "SecondLook unused": made(SecondLook, {**USUAL, "stopping": ()}),
    }


def _account_variants() -> dict[str, View]:
    plain = {**USUAL, "is_sandbox": False}
    many = tuple(Scope(words=f"Do the thing number {n}", raw=f"thing:{n}") for n in range(20))
    keyed = {"key_form": USUAL["form"], "key_label": "API key", "key_page": "https://a.example/k"}
    return {
        "StartAccount with a key": made(StartAccount, {**plain, **keyed}),
        "StartAccount for real": made(StartAccount, {**plain, "reason": None}),
        "StartAccount who only": made(StartAccount, {**plain, "scopes": (), "client": None}),
        "StartAccount twenty scopes": made(StartAccount, {**plain, "scopes": many}),
        "StartAccount forty scopes": made(StartAccount, {**plain, "scopes": many * 2}),
        "StartAccount dangerous": usual(StartAccount, scopes=RISKS, team="Research"),
        "StartAccount one account": usual(StartAccount, account="octocat", reason=None),
        "StartAccount tenant": usual(StartAccount, tenant_label="Your shop's address"),
        "StartAccount wrong tenant": usual(
            StartAccount,
            tenant_label="Your shop's address",
            tenant="acme",
            tenant_fault="This is no address of a shop.",
        ),
        "StartAccount long reason": made(StartAccount, {**plain, "reason": "because it is " * 40}),
        "UseAccount for real": made(
            UseAccount, {**plain, "choices": (choice(connected_for=TOOL_NAMES[1:]),)}
        ),
        "UseAccount unnamed": made(
            UseAccount, {**plain, "choices": (choice(person=AccountName(label="octocat")),)}
        ),
        "UseAccount several": made(
            UseAccount,
            {**USUAL, "choices": (choice(), choice(person=AccountName(label="hubber")))},
        ),
        "UseAccount kept to some": made(
            UseAccount, {**plain, "choices": (choice(is_limited_to_some=True),)}
        ),
        "UseAccount of a team": usual(UseAccount, choices=(choice(scopes=RISKS),), team="Research"),
        "UseAccount by name": made(UseAccount, {**USUAL, "other_action": None}),
        "DoneAccount for real": made(DoneAccount, {**plain, "switch_back": None}),
        "DoneAccount switched back": made(
            DoneAccount,
            {**USUAL, "switch_back": SwitchBack(former=AccountName(label="hubber"), is_done=True)},
        ),
        "DoneAccount without a way back": made(
            DoneAccount, {**USUAL, "switch_back": SwitchBack(former=AccountName(label="hubber"))}
        ),
        "DoneSecret wiped": DoneSecret(server="my tools", is_stored=False),
        "Used here": Used(server="my tools"),
        "ProviderTrouble by a link": made(ProviderTrouble, {**USUAL, "again_action": None}),
        "ProviderTrouble loaded again": made(ProviderTrouble, {**USUAL, "error_id": None}),
        "ProviderTrouble refused": made(ProviderTrouble, {**USUAL, "trouble": "refused"}),
        "ProviderTrouble not set up": made(ProviderTrouble, {**USUAL, "trouble": "not set up"}),
        "ProviderTrouble without a way on": made(
            ProviderTrouble, {**USUAL, "again_action": None, "again_url": None}
        ),
        "Ended declined question": usual(Ended, ending="declined", kind="confirm", price=None),
        **{
            f"Ended {ending} account": made(Ended, {**USUAL, "ending": ending, "kind": "account"})
            for ending in get_args(Ending)
        },
    }


def _payment_variants() -> dict[str, View]:
    real = {**USUAL, "is_test": False}
    return {
        "StartPayment for real": made(StartPayment, {**real, "client": None}),
        "DonePayment for real": made(module.DonePayment, real),
        "PaymentPending for real": made(PaymentPending, real),
        "NotPaid for real": made(NotPaid, real),
        "NotPaid closed": made(NotPaid, {**USUAL, "is_closed": True}),
        "PaymentPending otherwise": made(PaymentPending, {**USUAL, "is_otherwise": True}),
        **{
            f"Ended {ending} payment": Ended(server="my tools", ending=ending, kind="payment")
            for ending in get_args(Ending)
        },
        "Payments of all kinds": made(
            views_own.PaymentsPage,
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
                    for number, standing in enumerate(get_args(views_own.PaymentStanding))
                ),
            },
        ),
        "Payments of no match": usual(
            views_own.PaymentsPage, payments=(), paging=Paging(show="used")
        ),
        "Payments of nobody": made(
            views_own.PaymentsPage, {**USUAL, "payments": (), "sign_out_csrf": None}
        ),
        **{
            f"PaymentOver {became}": made(views_own.PaymentOver, {**real, "became": became})
            for became in get_args(views_own.Over)
        },
        **{
            f"NotGivenBack {because}": made(views_own.NotGivenBack, {**USUAL, "because": because})
            for because in get_args(views_own.Stays)
        },
        **{f"Late {kind}": made(Late, {**real, "kind": kind}) for kind in ("account", "payment")},
        "Late payment as a test": made(Late, {**USUAL, "kind": "payment", "returned": None}),
        "DonePayment whole": made(module.DonePayment, {**USUAL, "returned": None}),
    }


def _form_variants() -> dict[str, View]:
    """Return forms with each kind of control, with faults, and with as many as a form can have."""
    secret: dict[str, Json] = {"type": "string", "writeOnly": True}
    keys = schema_of(
        {
            "type": "object",
            "properties": {
                "host": {"type": "string", "title": "Server", "default": "db.example.com"},
                "token": {**secret, "title": "Service key", "description": "Under Settings."},
                "certificate": {**secret, "title": "Certificate", "format": "multiline"},
            },
            "required": ["host", "token"],
        }
    )
    every = schema_of({"type": "object", "properties": CONTROLS, "required": ["mail", "day", "of"]})
    thirty = {f"answer_{number}": LABEL for number in range(30)}
    faults = [Fault(path=name, message="Please enter a value.") for name in [*CONTROLS][:4]]
    wrong_key = [Fault(path="token", message="It needs 8 characters or more.")]
    mixed = Argument(name="repo", value="acme/web\u0455ite")
    long = Argument(name="why", value="because it is " * 120)
    return {
        "StartForm every control": usual(StartForm, arguments=(), form=form_of(every)),
        "StartForm faults": usual(
            StartForm, arguments=(), form=form_of(every, values={}, faults=faults)
        ),
        "StartForm thirty fields": usual(
            StartForm, form=form_of(schema_of({"type": "object", "properties": thirty}))
        ),
        "StartSecret masked": usual(StartSecret, form=form_of(keys)),
        "StartSecret faults": usual(StartSecret, form=form_of(keys, values={}, faults=wrong_key)),
        "StartConfirm mixed alphabets": usual(StartConfirm, arguments=(mixed, long)),
        "StartConfirm thirty arguments": usual(StartConfirm, arguments=(ARGUMENTS * 8)[:30]),
    }


def _decision_variants() -> dict[str, View]:
    nothing: dict[str, Any] = {**USUAL, "lists": (), "approvals": ()}
    own = replace(WAITING, is_own=True, asker=None, client=None, client_id=None)
    return {
        "Decide own": made(Decide, {**USUAL, "entry": own, "arguments": ()}),
        "Decide votes": made(Decide, {**USUAL, **VOTING}),
        "Decide delegated": made(
            Decide, {**USUAL, "entry": replace(VOTED, has_delegated=True), "arguments": ()}
        ),
        "Decide another method": made(
            Decide, {**USUAL, "entry": replace(VOTED, may_have_approved=True), "arguments": ()}
        ),
        "Decide approved": made(
            Decide, {**USUAL, "entry": replace(VOTED, has_approved=True), "arguments": ()}
        ),
        "StartDecision votes": made(StartDecision, {**USUAL, "needs": 2, "given": 1}),
        "Decide late": made(Decide, {**USUAL, "entry": DECIDED, "came_late": True}),
        "Inbox of nobody": made(InboxPage, {**nothing, "sign_in": None}),
        "Inbox signed out": made(InboxPage, {**nothing, "sign_out_csrf": None}),
        "Inbox stale": made(InboxPage, {**nothing, "hidden": "stale"}),
        "Inbox unpaired": made(InboxPage, {**nothing, "hidden": "unpaired"}),
        **{
            f"Decided {decision}": made(Decided, {**USUAL, "decision": decision, "reason": None})
            for decision in get_args(Decision)
            if decision != "waiting"
        },
    }


def _operator_variants() -> dict[str, View]:
    plain: dict[str, Any] = {**USUAL, "fault": None, "notice": None, "is_spent": False}
    nothing = {**plain, "lines": (), "paging": Paging()}
    bare = ("facts", "stages", "timeline", "links", "log_lines", "acts")
    return {
        "OperatorList empty": made(OperatorList, nothing),
        "OperatorList wrong": made(OperatorList, {**nothing, "wrong": "'x' is not a time."}),
        "OperatorRecord of nothing": made(
            OperatorRecord, {**plain, **dict.fromkeys(bare, ()), "payload": None}
        ),
        **{
            f"OperatorAct {change}": made(OperatorAct, {**plain, "change": change})
            for change in get_args(Act)
        },
    }


def _connection_variants() -> dict[str, View]:
    (group,) = USUAL["groups"]
    (one,) = group.connected
    others = (
        replace(one, id="x6", is_limited_to_some=True),
        replace(one, id="x2", is_in_use=True, is_sandbox=True, person=AccountName(label="hubber")),
        replace(one, id="x3", is_in_use=False, switch_action="/connections/x3/switch", shared=()),
        replace(one, id="x4", standing="over", scopes=()),
        replace(one, id="x5", standing="unused", scopes=None),
    )
    ending = replace(
        one, ends_at=NOW + timedelta(days=3), reconnect_action="/r", scopes=RISKS, manage=AT_GITHUB
    )
    of_team = replace(
        ending, id="x7", team="Research", members=(TeamUse(name="Hubot", used_at=NOW),)
    )
    unmanaged = replace(of_team, id="x8", is_managed=False)
    team = AccountGroup(name="my tools", connected=(ending, of_team, unmanaged))
    groups = (group, AccountGroup(name="other tools", connected=others))
    return {
        "Connections of many": made(ConnectionsPage, {**USUAL, "groups": groups}),
        "Connections of a team": usual(ConnectionsPage, groups=(team,), paging=Paging(total=3)),
        "Activity of nobody": usual(ActivityPage, asked=()),
        "Activity of no match": usual(ActivityPage, asked=(), paging=Paging(show="failed")),
        "Connections of no match": usual(ConnectionsPage, groups=(), paging=Paging(show="over")),
        "NoCookie of an earlier visit": usual(NoCookie, has_cookie=True),
        "Connections of nobody": made(
            ConnectionsPage, {**USUAL, "groups": (), "sign_out_csrf": None, "viewer": "you"}
        ),
        "Connections of this computer": made(
            ConnectionsPage, {**USUAL, "sign_out_csrf": None, "sign_in": None}
        ),
        **{
            f"Closed {of} {name}": made(Closed, {**USUAL, "of": of, "sign_in": button})
            for of in get_args(PersonsPage)
            for name, button in (("here only", None), ("signed out", SIGN_IN))
        },
        **{
            f"Disconnected {revoked}": made(views_own.Disconnected, {**USUAL, "revoked": revoked})
            for revoked in (False, None)
        },
    }
