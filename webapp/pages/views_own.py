"""The views of a person's own pages: home, accounts and payments, each with its template.

Leave out every field that the template does not show: a value that is not here cannot leak.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal

from flows.elicitation.tool_call import DescribedTool
from webapp.pages.views import AccountName, Scope, View
from webapp.pages.views_openers import OwnPage
from webapp.settings.settings import DEFAULT_URL


@dataclass(frozen=True, slots=True, kw_only=True)
class Home(View):
    """The page of this server and how to add it. `sandbox_url` is None if the sandbox is off."""

    template: ClassVar[str] = "home.html"
    mcp_url: str
    tools: tuple[DescribedTool, ...]
    sandbox_url: str | None = None

    @property
    def demo_command(self) -> str | None:
        """The command that calls one of the server's tools in a terminal, or None without tools."""
        if not self.tools:
            return None
        url = self.mcp_url.removesuffix("/mcp")
        names = [tool.name for tool in self.tools]
        where = [] if url == DEFAULT_URL else ["--url", url]
        which = [] if "list_my_repositories" in names else ["--tool", names[0]]
        return shlex.join(["elicit", "demo", *where, *which])

    @property
    def claude_command(self) -> str:
        """The command that adds the server to Claude Code."""
        return shlex.join(
            ["claude", "mcp", "add", "--transport", "http", self._entry, self.mcp_url]
        )

    @property
    def vscode_settings(self) -> str:
        """The contents of .vscode/mcp.json."""
        return _json({"servers": {self._entry: {"type": "http", "url": self.mcp_url}}})

    @property
    def cursor_settings(self) -> str:
        """The contents of Cursor's mcp.json."""
        return _json({"mcpServers": {self._entry: {"url": self.mcp_url}}})

    @property
    def desktop_settings(self) -> str:
        """The contents of Claude Desktop's file, where the client starts the server itself."""
        # A desktop client has no useful working directory, so PYTHONPATH says where the tools are.
        command = {
            "command": "elicit",
            "args": ["stdio", "my_tools:mcp"],
            "env": {"PYTHONPATH": "/the/folder/of/my_tools"},
        }
        return _json({"mcpServers": {self._entry: command}})

    @property
    def _entry(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.server.lower())[:40].strip("-") or "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersHome(View):
    """The home page of an application without tools, which asks its own users."""

    template: ClassVar[str] = "users_home.html"


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


# The state of an account for tools. "over": its access token no longer works. "unused": it was made
# for another client registration of this server.
AccountStanding = Literal["works", "over", "unused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """A tool that may use an account, and the time of its last use."""

    tool: str
    tool_title: str | None
    used_at: datetime | None
    stop_action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assistant:
    """A client that asked for an account or used it. It gives itself its `name` and `title`.

    `id` comes from its access token. `key` identifies the client in a form.
    """

    key: str
    name: str
    title: str | None
    id: str | None
    may_use: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamUse:
    """A member of a team who used its account. `name` is as the issuer or application says it."""

    name: str
    used_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """A connected account. In `shared`, the tool that used it last comes first.

    `id` is its anchor on the page, `provider` a label. `scopes` is None if the provider has no
    scopes and the person chose permissions on the provider's page. `is_in_use` is None if the
    person has no other account.
    `switch_action` is set if the account could be in use but is not, `reconnect_action` if we have
    a client at its provider. `clients` are the known clients of the account. `is_limited_to_some`:
    only some of these clients may use the account, or none. `manage` is the page where the person
    can remove our access at the provider. `ends_at` is set if the account ends soon unless the
    person connects it again. `team` is the label of the team that owns the account, and `members`
    are the people of the team who used it, the latest first. Unless `is_managed`, another member
    connected it, and the person cannot change it.
    """

    id: str
    provider: str
    person: AccountName
    connected_at: datetime
    scopes: tuple[Scope, ...] | None
    shared: tuple[Sharing, ...]
    standing: AccountStanding
    csrf: str
    disconnect_action: str
    keep_action: str
    clients: tuple[Assistant, ...] = ()
    is_limited_to_some: bool = False
    is_in_use: bool | None = None
    is_another_in_use: bool = False
    reconnect_action: str | None = None
    switch_action: str | None = None
    manage: str | None = None
    ends_at: datetime | None = None
    is_sandbox: bool = False
    team: str | None = None
    members: tuple[TeamUse, ...] = ()
    is_managed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountGroup:
    """The accounts that are connected for one server. `name` is the name that it gives itself."""

    name: str
    connected: tuple[Connected, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionsPage(OwnPage):
    """The page of all accounts that the viewer has connected.

    `server` and the groups have the names that pages show. `providers` are the labels of the
    filters for one provider, by the filters' names.
    """

    template: ClassVar[str] = "connections.html"
    groups: tuple[AccountGroup, ...]
    providers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_of_many(self) -> bool:
        """True if the page must say for which server an account is connected."""
        return [group.name for group in self.groups] not in ([], [self.server])


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected(View):
    """The page of an account that was deleted here. `provider` is a label.

    `revoked` says whether the provider revoked the access token; None: it offers no revocation.
    `account` is the account's name there. `manage` is the page for removing our access there.
    """

    template: ClassVar[str] = "disconnected.html"
    provider: str
    account: str
    revoked: bool | None
    manage: str | None


# "stuck": the refund failed, and the operator must check it. "made": a result was made for the
# payment, and it is unknown whether the result arrived.
Stays = Literal["taken", "made", "spent", "disputed", "by_hand", "under_way", "trouble"]
Over = Literal[
    "refunding",
    "refund_pending",
    "refund_failed",
    "refunded",
    "disputed",
    "dispute_lost",
    "dispute_appealed",
]
PaymentStanding = Literal["open", "in_hand", "made", "spent", "stuck", Over]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """A payment. Its price and all its parts are formatted.

    `returned` is the refunded part, `owed` the part whose refund failed, `disputed` the part that a
    bank disputes, and `charged_back` the part that a bank took back. `is_asked_about`: a bank
    inquires, but takes no money. `id` is the receipt's id, and `seller` is a label. `back_on` is
    the time of the automatic refund of an unused payment. `refund_action` is set if the person can
    ask for a refund: a GET shows a confirmation page, a POST refunds.
    """

    id: str
    price: str
    what: str
    tool: str
    tool_title: str | None
    seller: str
    paid_at: datetime
    standing: PaymentStanding
    is_test: bool
    returned: str | None = None
    owed: str | None = None
    disputed: str | None = None
    charged_back: str | None = None
    is_asked_about: bool = False
    back_on: datetime | None = None
    refund_action: str | None = None
    receipt_url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentsPage(OwnPage):
    """The page of all payments of the viewer, the latest first."""

    template: ClassVar[str] = "payments.html"
    payments: tuple[Paid, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptPage(OwnPage):
    """The receipt of one payment, for printing. `host` is this server's."""

    template: ClassVar[str] = "receipt.html"
    payment: Paid
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotGivenBack(View):
    """The page of a refund that was not possible: the payment is used, or a bank disputes it.

    `receipt` is the id of the receipt.
    """

    template: ClassVar[str] = "not_given_back.html"
    because: Stays
    receipt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentOver(View):
    """The page of a payment that is refunded, being refunded, owed, or disputed by a bank.

    `receipt` is the id of the receipt. `price` is the owed part if a refund failed,
    otherwise the whole price.
    """

    template: ClassVar[str] = "payment_over.html"
    became: Over
    price: str
    what: str
    receipt: str
    is_test: bool
