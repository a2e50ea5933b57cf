"""A connection: an account that a person connected for one served server, as it is stored.

Risks: an account is used for another owner, another server, or another provider of the same name.
A look-up therefore needs the owner and `key`, which is computed from the server and the provider.

Another risk: an unused refresh token expires, and the person notices only when a tool fails. So
`planned` sets a time for a refresh, and for a warning before the end. If all accounts that were
connected in one minute were refreshed in one minute, the provider would refuse some requests. So
each account's time also depends on its id. Tokens that live less than two days get no refresh and
no warning: they are sessions, which the provider wants to end.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from flows.elicitation.states import Json
from flows.elicitation.tool_call import CallingClient, SeenClient, seen
from flows.oauth.responses import Person

WRITTEN_AGAIN_AFTER = timedelta(minutes=1)
MEMBERS_AT_MOST = 50  # the latest members of a team who used its account
REMEMBERED_FOR = timedelta(days=1)
CLIENTS_AT_MOST = 16  # only the latest clients are stored


class Claim(Struct, frozen=True, kw_only=True):
    """A process's claim: until it expires, no other process refreshes or revokes the tokens."""

    by: str
    until: datetime


class MemberUse(Struct, frozen=True, kw_only=True):
    """The last use of a team's account by one member."""

    name: str
    at: datetime


class Connection(Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    # keyed hash of server, provider, its address and our client id
    lookup_key: str = field(name="key")
    server: str
    provider: str
    person_id: str
    label: str
    connected_at: datetime
    scopes: tuple[str, ...]  # the scopes that the provider granted
    # scopes that were requested when the account was connected, and not granted
    withheld: tuple[str, ...] = ()
    tools: tuple[str, ...]  # the tools that may use it
    titles: Mapping[str, str] = field(default_factory=dict[str, str])  # tools' titles
    access_token: str
    refresh_token: str | None = None
    # a service account: the scopes that each token request names
    requested: tuple[str, ...] | None = None
    is_exchanged: bool = False  # the person's own access token was exchanged for this one
    stopped: tuple[str, ...] = ()  # an exchanged account: tools that have to ask the person first
    # A program imported the refresh token, and no provider has said whose account it renews.
    is_unproven: bool = False
    dpop_key: str | None = None  # the private key that the tokens are bound to
    expires_at: datetime | None = None
    name: str | None = None
    picture: str | None = None
    tenant: str | None = None  # the host of the provider's tenant
    # values of the token reply or callback that the provider's `keep` names
    details: Mapping[str, str] = field(default_factory=dict[str, str])
    issued_at: datetime | None = None  # when the access token was issued; None in old rows
    # the token endpoint of the exchange
    token_endpoint: str | None = field(default=None, name="token")
    client_auth: str | None = None  # how this server authenticated at that endpoint
    issuer: str | None = None  # the issuer that granted the tokens
    # True if this account is the one in use for `lookup_key`
    is_active: bool = field(default=True, name="holds_key")
    put_aside_at: datetime | None = None  # when the person put another account in use
    used: Mapping[str, datetime] = field(default_factory=dict[str, datetime])  # last use by tool
    claim: Claim | None = None
    retry_at: datetime | None = None  # the last refresh failed: no new try before this time
    refresh_expires_at: datetime | None = None  # when an unused refresh token ends
    end_set_at: datetime | None = None  # when an exchange or refresh set `ends_at`
    keep_at: datetime | None = None  # when the sweeper refreshes it, or warns of its end
    warned_at: datetime | None = None  # the account's end is near, and `account.expiring` was sent
    refused_at: datetime | None = None  # the first refusal of a refresh for an unclear reason
    lapsed_at: datetime | None = None  # unusable until the person connects it again
    ended_at: datetime | None = None  # disconnected: only the label is still stored
    was_revoked: bool | None = None  # whether the provider confirmed the revocation
    ended_by: str | None = None  # disconnected through the HTTP API: the API key's audit name
    came_by: str | None = None  # the elicitation of the latest exchange
    # the id of the account that the latest exchange replaced
    replaced_id: str | None = field(default=None, name="former")
    declared: Json = None  # the provider if only a tool's code declares it
    clients: tuple[SeenClient, ...] = ()  # clients that use it or may use it, latest last
    only: tuple[str, ...] | None = None  # keys of the clients that may use it; None: all clients
    team: str | None = None  # the team that owns it; the owner is then the team's tag
    connected_by: str | None = None  # the owner tag of the team's member who connected it
    # the last use by each member of the team, by the owner tag, with the name of that person
    members: Mapping[str, MemberUse] = field(default_factory=dict[str, MemberUse])
    last_member: str | None = None  # the owner tag of the member who used it last
    version: int = 0

    @property
    def status(self) -> str:
        if self.ended_at is not None:
            return "disconnected"
        return "connected" if self.lapsed_at is None else "lapsed"

    @property
    def ends_at(self) -> datetime | None:
        """The time after which the person has to connect the account again. None if unknown."""
        return self.refresh_expires_at if self.is_renewable else self.expires_at

    @property
    def is_service(self) -> bool:
        """True for this server's own account at the provider, which belongs to no person."""
        return self.requested is not None

    @property
    def is_renewable(self) -> bool:
        """True if the server can get another access token without the person."""
        return self.refresh_token is not None or self.is_service

    @property
    def has_fixed_end(self) -> bool:
        """True if a refresh does not move the end of the refresh token."""
        set_at, issued_at = self.end_set_at, self.issued_at
        return set_at is not None and issued_at is not None and set_at < issued_at

    @property
    def second_refresh_at(self) -> datetime | None:
        """The time of the sweeper's second refresh: a single refusal may be a mistake."""
        return self.retry_at if self.is_connected and self.refused_at is not None else None

    @property
    def due_at(self) -> datetime | None:
        """The time of the sweeper's next work on the account."""
        times = (self.second_refresh_at, self.keep_at if self.is_connected else None)
        return min((at for at in times if at is not None), default=None)

    @property
    def erase_at(self) -> datetime | None:
        # A disconnected exchanged account stays, or the next call would exchange a token again.
        if self.ended_at is None or self.is_exchanged:
            return None
        return self.ended_at + REMEMBERED_FOR

    @property
    def is_connected(self) -> bool:
        return self.status == "connected"

    @property
    def is_ending(self) -> bool:
        """True while a process disconnects the account, and after such a process has died."""
        return self.lapsed_at is not None and self.claim is not None

    def __repr__(self) -> str:
        return f"Connection({self.id!r}, {self.provider!r}, {self.label!r})"

    @property
    def row_key(self) -> str | None:
        return self.lookup_key if self.is_active else None

    def is_wanted(self, account: str | None, tenant: str | None = None) -> bool:
        """Return True if this is the account that the tool named, or if the tool named none."""
        if tenant not in (None, self.tenant):
            return False
        return account is None or Person(id=self.person_id, label=self.label).is_called(account)

    def is_usable(self, *, now: datetime) -> bool:
        """Return True if the access token is still valid or can be refreshed."""
        return self.is_connected and (self.is_renewable or self.works(now=now))

    def works(self, *, now: datetime) -> bool:
        return self.expires_at is None or now < self.expires_at

    def is_claimed(self, *, now: datetime) -> bool:
        return self.claim is not None and now < self.claim.until

    def is_shared(self, tool: str, client: CallingClient | None) -> bool:
        """Return True if this tool may use the account when `client` calls it (None: unknown)."""
        is_let = self.only is None or (client is not None and client.key in self.only)
        return (tool in self.tools and is_let) or self.is_service

    def needs_new_consent(self, tool: str, client: CallingClient | None) -> bool:
        """Return True if the person disconnected the account, or stopped its use by tool or client.

        This method is for exchanged accounts, which all other tools use without asking.
        """
        is_let = self.only is None or (client is not None and client.key in self.only)
        has_ended = self.ended_at is not None or self.is_ending
        return has_ended or tool in self.stopped or not is_let

    def is_put_aside(self, *, since: datetime | None) -> bool:
        """Return True if the person chose to use another account after `since`."""
        at = None if self.is_active else self.put_aside_at
        return at is not None and since is not None and since < at


def allow(
    connection: Connection, tool: str, client: CallingClient | None, *, title: str | None = None
) -> Connection:
    """Share the account with the tool, and with the calling client if it is limited to clients."""
    tools, only = connection.tools, connection.only
    titles = {**connection.titles, **titled(tool, title)}
    if tool not in tools:
        tools = (*tools, tool)
    if only is not None and client is not None and client.key not in only:
        only = (*only, client.key)
    stopped = tuple(one for one in connection.stopped if one != tool)
    updated = _with_client(connection, client)
    return replace(updated, tools=tools, titles=titles, only=only, stopped=stopped)


def titled(tool: str, title: str | None) -> Mapping[str, str]:
    """Return the tool's title under its name, or an empty mapping for a tool without a title."""
    return {} if title is None else {tool: title}


def forbid(connection: Connection, tool: str) -> Connection:
    """Stop sharing the account with the tool, which then has to ask again."""
    tools = tuple(one for one in connection.tools if one != tool)
    used = {name: at for name, at in connection.used.items() if name != tool}
    stopped = connection.stopped
    if connection.is_exchanged and tool in connection.tools:
        stopped = (*stopped, tool)
    return replace(connection, tools=tools, used=used, stopped=stopped)


def limit_to(connection: Connection, keys: Collection[str] | None) -> Connection:
    """Limit the account to the known clients with these `keys`. None removes the limit."""
    known = (client.key for client in connection.clients)
    only = None if keys is None else tuple(key for key in known if key in keys)
    return replace(connection, only=only)


def renewed(connection: Connection, previous: Connection) -> Connection:
    """Return a reconnected account with the tools and clients of `previous` added to its own."""
    now_asking = {client.key: client for client in connection.clients}
    known = {client.key: client for client in previous.clients if client.key not in now_asking}
    only = None if previous.only is None else tuple(dict.fromkeys((*previous.only, *now_asking)))
    return replace(
        connection,
        clients=_remembered({**known, **now_asking}.values(), only),
        only=only,
        tools=tuple(dict.fromkeys((*previous.tools, *connection.tools))),
        titles={**previous.titles, **connection.titles},
        used=previous.used,
        stopped=previous.stopped,
        withheld=tuple(dict.fromkeys((*previous.withheld, *connection.withheld))),
        put_aside_at=previous.put_aside_at,
        members=previous.members,
        version=previous.version,
    )


def put_aside(connection: Connection, *, now: datetime) -> Connection:
    """Record that the person chose to use another account."""
    return replace(connection, is_active=False, put_aside_at=now)


def put_in_use(connection: Connection) -> Connection:
    return replace(connection, is_active=True, put_aside_at=None)


def use(
    connection: Connection, tool: str, client: CallingClient | None, *, now: datetime
) -> Connection:
    """Record that the tool used the account for the client, at most once a minute for a tool."""
    updated, last = _with_client(connection, client), connection.used.get(tool)
    if last is not None and now < last + WRITTEN_AGAIN_AFTER:
        return updated
    return replace(updated, used={**connection.used, tool: now})


def use_as_member(connection: Connection, member: str, name: str, *, now: datetime) -> Connection:
    """Record that a member of the team used its account, at most once a minute for a member."""
    last = connection.members.get(member)
    is_written = last is not None and now < last.at + WRITTEN_AGAIN_AFTER
    if is_written and connection.last_member == member:
        return connection
    members = {one: use for one, use in connection.members.items() if one != member}
    members[member] = MemberUse(name=name, at=now)
    latest = dict([*members.items()][-MEMBERS_AT_MOST:])
    return replace(connection, members=latest, last_member=member)


def lapse(connection: Connection, *, now: datetime) -> Connection:
    """Mark the account as unusable until the person connects it again."""
    return replace(
        connection, lapsed_at=now, claim=None, retry_at=None, refused_at=None, keep_at=None
    )


def disconnect(
    connection: Connection, *, now: datetime, was_revoked: bool | None, by: str | None = None
) -> Connection:
    """Return the disconnected account, reduced to what the page still shows.

    Fields that are not named here are dropped, so a new field is erased unless it is added here.
    """
    return Connection(
        id=connection.id,
        owner=connection.owner,
        lookup_key=connection.lookup_key,
        server=connection.server,
        provider=connection.provider,
        person_id="",
        label=connection.label,
        connected_at=connection.connected_at,
        scopes=(),
        tools=(),
        access_token="",
        is_active=False,
        ended_at=now,
        was_revoked=was_revoked,
        ended_by=by,
        declared=connection.declared,
        team=connection.team,
        connected_by=connection.connected_by,
        is_exchanged=connection.is_exchanged,
        version=connection.version,
    )


def _with_client(connection: Connection, client: CallingClient | None) -> Connection:
    """Return the connection with `client` among its known clients."""
    if client is None or any(known.key == client.key for known in connection.clients):
        return connection
    clients = _remembered((*connection.clients, seen(client)), connection.only)
    return replace(connection, clients=clients)


def _remembered(
    clients: Iterable[SeenClient], only: tuple[str, ...] | None
) -> tuple[SeenClient, ...]:
    """Return the latest clients and those in `only`, so that the page can show all of them."""
    every = tuple(clients)
    latest = {client.key for client in every[-CLIENTS_AT_MOST:]}
    return tuple(one for one in every if one.key in latest or one.key in (only or ()))


# Times for an account that ends without use: for a refresh, and for a warning before the end.

LIFE_AT_LEAST = timedelta(days=2)
REFRESH_BEFORE_END = timedelta(days=14)  # or a third of the lifetime, if that is less
WARNED_BEFORE = timedelta(days=7)  # or a quarter of the lifetime, if that is less
TRIED_AGAIN_AFTER = timedelta(hours=6)


def planned(connection: Connection, *, now: datetime) -> Connection:
    """Return the connection with the time of its next step, and without an outdated warning."""
    warn_at = _warn_at(connection)
    end = connection.ends_at
    if end is None or warn_at is None or end <= now:
        return replace(connection, keep_at=None)
    if now < warn_at:
        connection = replace(connection, warned_at=None)
    at = warn_at if connection.warned_at is None else end
    if connection.refresh_token is not None and not connection.has_fixed_end:
        before = min(REFRESH_BEFORE_END, _life(connection, end) / 3)
        at = end - before - before / 2 * _share(connection.id)
    return replace(connection, keep_at=max(at, now))


def warned(connection: Connection, *, now: datetime) -> Connection:
    """Record that the person and the operator were warned, at most once until the end changes."""
    warn_at = _warn_at(connection)
    if connection.warned_at is not None or warn_at is None or now < warn_at:
        return connection
    return replace(connection, warned_at=now, last_member=None)


def _warn_at(connection: Connection) -> datetime | None:
    """Return when the person is warned; None if the end is unknown, or the lifetime is short."""
    end = connection.ends_at
    if end is None or _life(connection, end) < LIFE_AT_LEAST:
        return None
    return end - min(WARNED_BEFORE, _life(connection, end) / 4)


def _life(connection: Connection, end: datetime) -> timedelta:
    return end - (connection.end_set_at or connection.issued_at or connection.connected_at)


def _share(id: str) -> float:
    """Return a number from 0 to 1 that is the same for an account each time."""
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:4]) / 2**32
