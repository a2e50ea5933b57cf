"""A connection: an account that a person connected for one served server, as it is stored.

What could go wrong: an account that serves another owner, another server, or another provider of
the same name than the one it came from. Whoever looks one up names all three in its key.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from flows.elicitation.calling_client import CallingClient, SeenClient, seen
from flows.elicitation.states import Json
from flows.oauth.responses import Person

WRITTEN_AGAIN_AFTER = timedelta(minutes=1)
REMEMBERED_FOR = timedelta(days=1)
CLIENTS_AT_MOST = 16  # that are remembered, the latest


class Claim(Struct, frozen=True, kw_only=True):
    """Who is at the provider with this key at the moment; nobody else goes before it is over."""

    by: str
    until: datetime


class Connection(Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    key: str  # keyed hash of server, provider, its address and our client id
    server: str
    provider: str
    person_id: str
    label: str
    connected_at: datetime
    scopes: tuple[str, ...]  # as granted
    tools: tuple[str, ...]  # that may use it
    access_token: str
    refresh_token: str | None = None
    expires_at: datetime | None = None
    name: str | None = None
    picture: str | None = None
    issued_at: datetime | None = None  # the key; None in what was stored before this was known
    token: str | None = None  # where the exchange was made
    client_auth: str | None = None  # how we said there who we are
    issuer: str | None = None  # who granted it
    holds_key: bool = True  # the one that this server uses now
    put_aside_at: datetime | None = None  # the person put another one in use by a press
    used: Mapping[str, datetime] = field(default_factory=dict[str, datetime])  # last, by tool
    claim: Claim | None = None
    retry_at: datetime | None = None  # the last refresh failed: no other one before this
    refused_at: datetime | None = None  # when the provider first refused to refresh, unproven yet
    lapsed_at: datetime | None = None  # it works no more until the person connects again
    ended_at: datetime | None = None  # disconnected: only its label is left of it here
    was_revoked: bool | None = None  # what the provider said then
    ended_by: str | None = None  # over the HTTP API: as the audit names a key
    came_by: str | None = None  # the elicitation of the latest exchange
    former: str | None = None  # the id of the one whose place it took then
    declared: Json = None  # the provider, where only a tool's code declares it
    clients: tuple[SeenClient, ...] = ()  # that it was allowed or used through, the latest last
    only: tuple[str, ...] | None = None  # keys of clients that may use it; None: all the owner's
    version: int = 0

    @property
    def status(self) -> str:
        if self.ended_at is not None:
            return "disconnected"
        return "connected" if self.lapsed_at is None else "lapsed"

    @property
    def due_at(self) -> datetime | None:
        """When the sweeper asks a second time, after a refusal that proves nothing by itself."""
        return self.retry_at if self.is_connected and self.refused_at is not None else None

    @property
    def erase_at(self) -> datetime | None:
        return None if self.ended_at is None else self.ended_at + REMEMBERED_FOR

    @property
    def is_connected(self) -> bool:
        return self.status == "connected"

    def __repr__(self) -> str:
        return f"Connection({self.id!r}, {self.provider!r}, {self.label!r})"

    @property
    def row_key(self) -> str | None:
        return self.key if self.holds_key else None

    def is_wanted(self, account: str | None) -> bool:
        """Whether it is the account that a tool has named, if it named one."""
        return account is None or Person(id=self.person_id, label=self.label).is_called(account)

    def is_usable(self, *, now: datetime) -> bool:
        """Whether its key works still, or there is something to renew it with."""
        return self.is_connected and (self.refresh_token is not None or self.works(now=now))

    def works(self, *, now: datetime) -> bool:
        return self.expires_at is None or now < self.expires_at

    def is_claimed(self, *, now: datetime) -> bool:
        return self.claim is not None and now < self.claim.until

    def is_shared(self, tool: str, client: CallingClient | None) -> bool:
        """Whether this tool may use it when this client calls it; None is a client unknown."""
        is_let = self.only is None or (client is not None and client.key in self.only)
        return tool in self.tools and is_let

    def is_put_aside(self, *, since: datetime | None) -> bool:
        """Whether the person has put another one in use after that."""
        at = None if self.holds_key else self.put_aside_at
        return at is not None and since is not None and since < at


def allow(connection: Connection, tool: str, client: CallingClient | None) -> Connection:
    """The tool may use it from now on; the client that called it too, where it is kept to some."""
    tools, only = connection.tools, connection.only
    if tool not in tools:
        tools = (*tools, tool)
    if only is not None and client is not None and client.key not in only:
        only = (*only, client.key)
    return replace(_met(connection, client), tools=tools, only=only)


def forbid(connection: Connection, tool: str) -> Connection:
    """The tool must ask from now on."""
    tools = tuple(one for one in connection.tools if one != tool)
    used = {name: at for name, at in connection.used.items() if name != tool}
    return replace(connection, tools=tools, used=used)


def keep_to(connection: Connection, keys: Collection[str] | None) -> Connection:
    """Only these of the clients that are known of it may use it; None: all of its owner's."""
    known = (client.key for client in connection.clients)
    only = None if keys is None else tuple(key for key in known if key in keys)
    return replace(connection, only=only)


def renewed(connection: Connection, former: Connection) -> Connection:
    """The same account connected again: whoever might use it still may, and who asked now."""
    now_asking = {client.key: client for client in connection.clients}
    known = {client.key: client for client in former.clients if client.key not in now_asking}
    only = None if former.only is None else tuple(dict.fromkeys((*former.only, *now_asking)))
    return replace(
        connection,
        clients=_remembered({**known, **now_asking}.values(), only),
        only=only,
        tools=tuple(dict.fromkeys((*former.tools, *connection.tools))),
        used=former.used,
        put_aside_at=former.put_aside_at,
        version=former.version,
    )


def put_aside(connection: Connection, *, now: datetime) -> Connection:
    """The person wants another one in use."""
    return replace(connection, holds_key=False, put_aside_at=now)


def put_in_use(connection: Connection) -> Connection:
    return replace(connection, holds_key=True, put_aside_at=None)


def use(
    connection: Connection, tool: str, client: CallingClient | None, *, now: datetime
) -> Connection:
    """The tool has used it for the client; what was noted a moment ago stands."""
    met, last = _met(connection, client), connection.used.get(tool)
    if last is not None and now < last + WRITTEN_AGAIN_AFTER:
        return met
    return replace(met, used={**connection.used, tool: now})


def lapse(connection: Connection, *, now: datetime) -> Connection:
    """It works no more; the person has to connect again."""
    return replace(connection, lapsed_at=now, claim=None, retry_at=None, refused_at=None)


def disconnect(
    connection: Connection, *, now: datetime, was_revoked: bool | None, by: str | None = None
) -> Connection:
    """Nothing of it is left but what the page says again: which it was, where, and how it ended.

    A field that is added here is left out unless it is named.
    """
    return Connection(
        id=connection.id,
        owner=connection.owner,
        key=connection.key,
        server=connection.server,
        provider=connection.provider,
        person_id="",
        label=connection.label,
        connected_at=connection.connected_at,
        scopes=(),
        tools=(),
        access_token="",
        holds_key=False,
        ended_at=now,
        was_revoked=was_revoked,
        ended_by=by,
        declared=connection.declared,
        version=connection.version,
    )


def _met(connection: Connection, client: CallingClient | None) -> Connection:
    """With the client among those that are known of it."""
    if client is None or any(known.key == client.key for known in connection.clients):
        return connection
    clients = _remembered((*connection.clients, seen(client)), connection.only)
    return replace(connection, clients=clients)


def _remembered(
    clients: Iterable[SeenClient], only: tuple[str, ...] | None
) -> tuple[SeenClient, ...]:
    """The latest of them, and each that it is kept to: nobody may use it who is not shown."""
    every = tuple(clients)
    latest = {client.key for client in every[-CLIENTS_AT_MOST:]}
    return tuple(one for one in every if one.key in latest or one.key in (only or ()))
