"""The views of the pages about connected accounts, each with its template.

Leave out every field that the template does not show: a value that is not here cannot leak.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal

from webapp.pages.views import AccountName, Scope, View
from webapp.pages.views_openers import OwnPage

# The state of an account for tools. "over": its access token no longer works. "unused": it was made
# for another client registration of this server.
Standing = Literal["works", "over", "unused"]


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
    standing: Standing
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
    `account` is the account's name there, `manage` as for Connected.
    """

    template: ClassVar[str] = "disconnected.html"
    provider: str
    account: str
    revoked: bool | None
    manage: str | None
