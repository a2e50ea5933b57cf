"""Views of each page, with usual values and with hostile values."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace as replace_struct

from flows.elicitation.tool_call import DescribedTool
from flows.elicitation.user_code import PAGE_WORDS
from flows.schema.schema import schema_of
from flows.shown import Argument
from tests.support.markup import Page
from webapp.operations.catalog import LISTS
from webapp.pages import views as module
from webapp.pages import (
    views_forms,
    views_openers,
    views_operator,
    views_own,
)
from webapp.pages.form import form_of
from webapp.pages.views import AccountName, Choice, Scope, SwitchBack, ToolName, View
from webapp.pages.views_forms import (
    ActivityEntry,
    Delegation,
    InboxEntry,
    InboxList,
    StandingYes,
)
from webapp.pages.views_openers import CodeButton, OtherIssuer, Paging, SignInButton
from webapp.pages.views_own import AccountGroup, Assistant, Connected, Sharing

TOOL_NAMES = (
    ToolName(tool="list_my_repositories", tool_title="List my repositories"),
    ToolName(tool="count_stars", tool_title=None),
)
DESCRIBED = DescribedTool(
    name="book_a_table",
    title="Book a table",
    description="Book a table at a restaurant.\n\nArgs: for the model.",
    arguments=(("guests", "Guests"), ("at", "At")),
    is_destructive=True,
)
NOW = datetime(2025, 11, 21, 21, 30, tzinfo=UTC)
PARTNER = OtherIssuer(name="partner", label="Partner", site="login.partner.example")
SIGN_IN = SignInButton(action="/signin", back="/e/abc", csrf="c5f1", issuer="login.example.com")
SEVERAL_ISSUERS = replace(SIGN_IN, others=(PARTNER,))
CODE = CodeButton(action="/e/abc/code", csrf="c5f1")
WAITING = InboxEntry(
    url="/inbox/finance/x1",
    message="Pay it back?",
    question="Pay it back?",
    arguments=(Argument(name="order", value="A-17"),),
    tool="refund",
    asker="auth0|248289761001",
    client="Claude",
    client_id="https://assistant.example/client",
    client_title="Claude Desktop",
    described=replace_struct(DESCRIBED, name="refund", title="Refund an order"),
    is_gate=True,
    asked_at=NOW - timedelta(hours=20),
    expires_at=NOW + timedelta(hours=4),
    decision="waiting",
)
VOTED = replace(
    WAITING,
    needs=3,
    approved_by=("Mona Lisa Octocat", "Hubot"),
    delegated=(Delegation(by="Mona Lisa Octocat", to="auth0|7"),),
)
VOTING: Mapping[str, Any] = {
    "entry": VOTED,
    "comment": "required",
    "comments": ("The receipt is there.",),
    "colleagues": ("auth0|7", "auth0|8"),
    "needs_comment": True,
    "typed_reason": "The receipt is missing. " * 21,
}
DECIDED = replace(
    WAITING,
    url="/inbox/finance/x2",
    decision="declined",
    decided_by="Mona Lisa Octocat",
    decided_at=NOW - timedelta(hours=2),
)
_FACTS = (
    views_operator.Fact(label="Tool", text="book_a_table"),
    views_operator.Fact(label="Person", text="AZypRQ", url="/operator/questions?person=x"),
    views_operator.Fact(label="Paid", at=NOW - timedelta(hours=3)),
)
USUAL: Mapping[str, Any] = {
    "approver": "finance",
    "key_form": None,
    "key_label": None,
    "key_page": None,
    "decision": "declined",
    "entry": WAITING,
    "lists": (
        InboxList(
            approver="finance",
            waiting=(WAITING, replace(WAITING, url="/inbox/finance/x3", is_own=True)),
            decided=(DECIDED,),
            more_waiting="/inbox?of=finance&after=x3",
            more_decided="/inbox?of=finance&after=x2&decided=1",
        ),
    ),
    "approvals": (
        StandingYes(
            tool="delete",
            tool_title="Delete to-dos",
            about="count: 5",
            until=NOW + timedelta(minutes=9),
            action="/approvals/a1/revoke",
        ),
    ),
    "hidden": None,
    "came_late": False,
    "end_url": "https://login.example.com/logout",
    "end_fields": (("client_id", "pages"), ("state", "s-1")),
    "updates": None,
    "approve_action": "/inbox/finance/x1/approve",
    "delegate_action": "/inbox/finance/x1/delegate",
    "comment": "none",
    "comments": (),
    "colleagues": (),
    "needs_comment": False,
    "typed_comment": "",
    "typed_reason": "",
    "needs": 1,
    "given": 0,
    "server": "my tools",
    "for_user": False,
    "is_otherwise": False,
    "is_closed": False,
    "is_our_link": True,
    "trouble": "silent",
    "is_payment": True,
    "of": "payments",
    "returned": "3.00 €",
    "host": "tools.example.com",
    "tool": "book_a_table",
    "message": "Please confirm the table for four at 19:30.\nIt is held for ten minutes.",
    "question": "Book a table?",
    "label": "Door code",
    "described": DESCRIBED,
    "tool_title": "Book a table",
    "client_title": "Claude Desktop",
    "phone_url": "https://tools.example.com/e/abc",
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
    "has_cookie": False,
    "csrf": "c5f1",
    "client": "Claude",
    "client_id": "https://assistant.example/client",
    "status": "opened",
    "kind": "url",
    "why": "This link works only for the person who uses this computer, in a browser on it.",
    "ending": "expired",
    "other": "person",
    "error_id": "7f3a-91c2",
    "problem": "The form did not come from this page",
    "mcp_url": "https://tools.example.com/mcp",
    "provider": "GitHub",
    "place": "https://github.com",
    "places": ("https://github.com",),
    "tenant_label": None,
    "tenant": "",
    "tenant_fault": None,
    "scopes": (
        Scope(words="Read and write your repositories", raw="repo", risk="write"),
        Scope(words="See your e-mail addresses", raw="user:email"),
    ),
    "reason": "To list the repositories that you can push to.",
    "is_sandbox": True,
    "person": AccountName(label="octocat", name="Mona Lisa Octocat"),
    "choices": (
        Choice(
            person=AccountName(label="octocat", name="Mona Lisa Octocat"),
            connected_for=TOOL_NAMES,
            scopes=(Scope(words="Read and write your repositories", raw="repo", risk="write"),),
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
    "refunded_after": timedelta(days=7),
    "statement": "ACME* REPORTS",
    "receipt": "rcp_4Qm2ZkT9",
    "is_stored": True,
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
    "can_be_stored": True,
    "is_approved": True,
    "is_by_model": False,
    "remove_at": "https://github.com/settings/applications",
    "sandbox_url": "http://127.0.0.1:8766",
    "action": "/pair/abc",
    "issuer": "login.example.com",
    "sign_in": SIGN_IN,
    "sign_in_at": "https://shop.example/login",
    "code": CODE,
    "signed_in_as": "Mona Lisa Octocat",
    "user_code": "BCDF-GHJK",
    "words": PAGE_WORDS,
    "wait": timedelta(seconds=30),
    "viewer": "Mona Lisa Octocat",
    "sign_out_csrf": "c5f1",
    "groups": (
        AccountGroup(
            name="my tools",
            connected=(
                Connected(
                    id="x1",
                    provider="GitHub",
                    person=AccountName(label="octocat", name="Mona Lisa Octocat"),
                    connected_at=NOW - timedelta(days=3),
                    scopes=(
                        Scope(words="Read and write your repositories", raw="repo", risk="write"),
                    ),
                    shared=(
                        Sharing(
                            tool="list_my_repositories",
                            tool_title="List my repositories",
                            used_at=NOW - timedelta(minutes=5),
                            stop_action="/connections/x1/unshare?tool=list_my_repositories",
                        ),
                        Sharing(
                            tool="count_stars",
                            tool_title=None,
                            used_at=None,
                            stop_action="/connections/x1/unshare?tool=count_stars",
                        ),
                    ),
                    standing="works",
                    csrf="c5f1",
                    disconnect_action="/connections/x1/disconnect",
                    keep_action="/connections/x1/keep",
                    clients=(
                        Assistant(
                            key="k1", name="claude-ai", title="Claude", id=None, may_use=True
                        ),
                        Assistant(
                            key="k2",
                            name="",
                            title=None,
                            id="https://app.example",
                            may_use=False,
                        ),
                    ),
                ),
            ),
        ),
    ),
    "by_code": True,
    "act": "disconnect",
    "stopping": TOOL_NAMES,
    "at": "GitHub",
    "about": "count: 5",
    "back": "/connections#x1",
    "account": "octocat",
    "team": None,
    "revoked": True,
    "left_out": (Scope(words="Make gists", raw="gist"),),
    "is_late": False,
    "is_for_a_tool": True,
    "manage": "https://github.com/settings/applications",
    "became": "refunded",
    "because": "taken",
    "payments": (
        views_own.Paid(
            id="p1",
            price="9.00 €",
            what="Premium report",
            tool="report",
            tool_title="Make a premium report",
            seller="Stripe",
            paid_at=NOW - timedelta(hours=3),
            standing="open",
            is_test=True,
            back_on=NOW + timedelta(days=6),
            refund_action="/payments/p1/refund",
            receipt_url="/payments/p1",
        ),
    ),
    "providers": {"at-github": "GitHub"},
    "paging": Paging(
        first=21,
        last=40,
        total=61,
        newer="/payments",
        older="/payments?page=3",
        shows=(("all", "/payments"), ("unused", "/payments?show=unused")),
    ),
    "asked": (
        ActivityEntry(
            says="Delete a repository?",
            tool="delete_repo",
            tool_title="Delete a repository",
            server="my tools",
            client="claude",
            client_id=None,
            client_title="Claude",
            asked_at=NOW - timedelta(hours=3),
            outcome="waiting",
            url="/e/abc",
        ),
        ActivityEntry(
            says="Your key, please.",
            tool="weather",
            server="my tools",
            client=None,
            client_id=None,
            asked_at=NOW - timedelta(days=40),
            outcome="done",
        ),
        ActivityEntry(
            says="Premium report",
            tool="report",
            server="my tools",
            price="9.00 €",
            client=None,
            client_id=None,
            asked_at=NOW - timedelta(days=41),
            outcome="declined",
        ),
        ActivityEntry(
            says="Connect GitHub",
            tool="list_my_repositories",
            server="my tools",
            provider="GitHub",
            client=None,
            client_id=None,
            asked_at=NOW - timedelta(days=42),
            outcome="done",
        ),
    ),
    "operator": "Mona Lisa Octocat",
    "search_csrf": "c5f1",
    "tab": "payments",
    "tabs": tuple((name, kind.label) for name, kind in LISTS.items()),
    "sought": "",
    "title": "Payment AZypRQoALcVVfTNLACTSFmxy",
    "lines": tuple(
        views_operator.RecordLine(
            title=f"9.00 EUR · AZypRQoALcVVfTNLACTSFmx{number}",
            status="spent",
            facts=_FACTS,
            url=f"/operator/payments/x{number}",
        )
        for number in range(3)
    ),
    "quick": (
        ("all", "/operator/payments", True),
        ("open", "/operator/payments?status=open", False),
    ),
    "fields": (views_operator.FilterField(name="tool", label="Tool", value="book*"),),
    "csv_url": "/operator/csv/payments",
    "notice": "The store has more rows than a page reads.",
    "wrong": None,
    "facts": _FACTS,
    "stages": (
        views_operator.Fact(label="Asked", at=NOW),
        views_operator.Fact(label="Shown", text="not recorded"),
    ),
    "timeline": (
        views_operator.Fact(label="the card was declined", text="Continue pressed (1)", at=NOW),
    ),
    "links": (views_operator.Fact(label="Webhook", text="x2", url="/operator/webhooks/x2"),),
    "log_lines": ("2026-03-01T12:00:00.000Z WARNING webapp.routes.links provider.failed id=x1",),
    "acts": (("refund", "/operator/payments/x1/refund"),),
    "payload": '{\n  "id": "evt_1"\n}',
    "says": "Nothing is stored under x1.",
    "shows_log": True,
    "change": "refund",
    "is_spent": True,
    "fault": "A call is using the payment at the moment: try again in a minute.",
    "command": "elicit operator",
    "tools": (DESCRIBED, DescribedTool(name="weather", description="Tell the weather.")),
}
USUAL = {**USUAL, "payment": USUAL["payments"][0]}
ViewT = TypeVar("ViewT", bound=View)
Shown: TypeAlias = Callable[[View], Page]  # a function with which a test renders a page
Rendered: TypeAlias = Mapping[str, tuple[View, Page]]  # each view with its page, by its name


def usual(view: type[ViewT], **changes: Any) -> ViewT:
    """Return the view with the usual values of its fields, except for `changes`."""
    values = {**USUAL, **changes}
    return view(**{field.name: values[field.name] for field in fields(view)})


# Every page. A new view in these modules is tested automatically.
VIEWS: tuple[type[View], ...] = tuple(
    view
    for found in (
        *(module, views_own, views_openers),
        *(views_operator, views_forms),
    )
    for view in vars(found).values()
    if isinstance(view, type) and issubclass(view, View) and hasattr(view, "template")
)
CHOSEN_BY_OTHERS = (
    *(
        "server",
        "host",
        "tool",
        "message",
        "client",
        "client_id",
        "tool_title",
        "client_title",
        "question",
        "label",
        "why",
        "error_id",
        "problem",
        "mcp_url",
    ),
    *("provider", "place", "reason", "price", "what", "seller", "receipt", "remove_at"),
    *("sandbox_url", "issuer", "signed_in_as", "viewer", "account", "returned", "at", "about"),
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


def made(view: type[View], values: Mapping[str, Any]) -> View:
    return view(**{field.name: values[field.name] for field in fields(view)})


def choice(**changes: Any) -> Choice:
    (choice,) = USUAL["choices"]
    changed: Choice = replace(choice, **changes)
    return changed


def _hostile_groups(text: str) -> tuple[AccountGroup, ...]:
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
    return (AccountGroup(name=text, connected=(worst,)),)


def hostile_views(name: str) -> dict[str, View]:
    """Return every page, with the same hostile text in all fields that others can choose."""
    text = HOSTILE[name]
    others: dict[str, Any] = dict.fromkeys(CHOSEN_BY_OTHERS, text)
    others |= {"origins": (text,), "places": (text,)}
    others |= {"stopping": (ToolName(tool=text, tool_title=None),)}
    others |= {"scopes": (Scope(words=text + ".", raw=text),) * 2}
    paid = [
        replace(one, price=text, what=text, tool=text, seller=text) for one in USUAL["payments"]
    ]
    others |= {"payments": tuple(paid), "payment": paid[0]}
    asked = [replace(one, says=text, tool=text, client=text) for one in USUAL["asked"]]
    others |= {"asked": tuple(asked)}
    person = AccountName(label=text, name=text + ".")
    others |= {"person": person, "switch_back": replace(USUAL["switch_back"], former=person)}
    others |= {
        "choices": (choice(person=person, connected_for=(ToolName(tool=text, tool_title=text),)),)
        * 2
    }
    others |= {"sign_in": replace(SIGN_IN, issuer=text, others=(replace(PARTNER, label=text),))}
    others |= {"groups": _hostile_groups(text)}
    others |= {"arguments": (Argument(name=text, value=text + "."),) * 2}
    described = DescribedTool(
        name=text, title=text, description=text, arguments=((text, text),), is_destructive=True
    )
    others |= {"described": described, "tools": (described,)}
    words: dict[str, Any] = {
        "question": text,
        "client_title": text,
        "described": described,
        "message": text,
        "tool": text,
        "asker": text,
        "client": text,
        "client_id": text,
    }
    entry = replace(WAITING, **words)
    decided = replace(DECIDED, **words, decided_by=text)
    others |= {"entry": entry}
    others |= {"lists": (InboxList(approver="finance", waiting=(entry,), decided=(decided,)),)}
    others |= {
        "approvals": tuple([replace(one, tool=text, about=text) for one in USUAL["approvals"]])
    }
    return {f"{view.__name__} {name}": made(view, {**USUAL, **others}) for view in VIEWS}
