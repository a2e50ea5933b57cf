"""What the pages about connected accounts are told: one value for each, and its template.

A field that a template does not show is a field too many: what is not here cannot leak into a page.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from webapp.pages.views import AccountName, Scope, View
from webapp.pages.views_openers import OwnPage

# Whether a tool gets it: its key works, or is over, or was made for another registration of ours.
Standing = Literal["works", "over", "unused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """A tool that may use an account, and when it did so last."""

    tool: str
    used_at: datetime | None
    stop_action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assistant:
    """A client that asked for an account or used it: `name` is what it calls itself.

    `id` is what its access token proved; `key` tells it from others in a form.
    """

    key: str
    name: str
    id: str | None
    may_use: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """An account that is connected; whoever used it last comes first in `shared`.

    `id` is its place on the page, `provider` a label. `scopes` is None where the provider has none,
    and the person chose there. `is_in_use` is None where there is no other; `switch_action` is
    there where it could be in use and is not, `reconnect_action` where we are known at its
    provider. `clients` are those that are known of it, and it `is_kept_to_some` of them or to none.
    `manage` is where a person removes it by hand.
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
    is_kept_to_some: bool = False
    is_in_use: bool | None = None
    is_another_in_use: bool = False
    reconnect_action: str | None = None
    switch_action: str | None = None
    manage: str | None = None
    is_sandbox: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountGroup:
    """What is connected for one server; `name` is what it calls itself."""

    name: str
    connected: tuple[Connected, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionsPage(OwnPage):
    """All that the person who looks has connected."""

    template: ClassVar[str] = "connections.html"
    groups: tuple[AccountGroup, ...]

    @property
    def is_of_many(self) -> bool:
        """Whether it must be said for which server something is connected."""
        return [group.name for group in self.groups] not in ([], [self.server])


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected(View):
    """An account is wiped here; `revoked` is what the provider, a label, says of its key.

    None: it has no way to be told. `account` is what it is called there, `manage` as for Connected.
    """

    template: ClassVar[str] = "disconnected.html"
    provider: str
    account: str
    revoked: bool | None
    manage: str | None
