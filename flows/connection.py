"""A connection: an account that a person connected for one served server, as it is stored.

What could go wrong: an account that serves another owner, another server, or another provider of
the same name than the one it came from. Whoever looks one up names all three in its key.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from flows.elicitation import Json
from flows.oauth_replies import Person

WRITTEN_AGAIN_AFTER = timedelta(minutes=1)
REMEMBERED_FOR = timedelta(days=1)


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
    tools: tuple[str, ...]  # who may use it
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
    retry_at: datetime | None = None  # the provider was out of order: not before this
    lapsed_at: datetime | None = None  # it works no more until the person connects again
    ended_at: datetime | None = None  # disconnected: only its label is left of it here
    was_revoked: bool | None = None  # what the provider said then
    came_by: str | None = None  # the elicitation of the latest exchange
    former: str | None = None  # the id of the one whose place it took then
    declared: Json = None  # the provider, where only a tool's code declares it
    version: int = 0

    @property
    def status(self) -> str:
        if self.ended_at is not None:
            return "disconnected"
        return "connected" if self.lapsed_at is None else "lapsed"

    @property
    def due_at(self) -> None:
        return None

    @property
    def erase_at(self) -> datetime | None:
        return None if self.ended_at is None else self.ended_at + REMEMBERED_FOR

    @property
    def is_connected(self) -> bool:
        return self.status == "connected"

    def __repr__(self) -> str:
        return f"Connection({self.id!r}, {self.provider!r}, {self.label!r})"

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

    def is_put_aside(self, *, since: datetime | None) -> bool:
        """Whether the person has put another one in use after that."""
        at = None if self.holds_key else self.put_aside_at
        return at is not None and since is not None and since < at


def allow(connection: Connection, tool: str) -> Connection:
    """The tool may use it from now on."""
    if tool in connection.tools:
        return connection
    return replace(connection, tools=(*connection.tools, tool))


def forbid(connection: Connection, tool: str) -> Connection:
    """The tool must ask from now on."""
    tools = tuple(one for one in connection.tools if one != tool)
    used = {name: at for name, at in connection.used.items() if name != tool}
    return replace(connection, tools=tools, used=used)


def renewed(connection: Connection, former: Connection) -> Connection:
    """The same account connected again: whoever might use it still may."""
    return replace(
        connection,
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


def use(connection: Connection, tool: str, *, now: datetime) -> Connection:
    """The tool has used it; what was noted a moment ago stands."""
    last = connection.used.get(tool)
    if last is not None and now < last + WRITTEN_AGAIN_AFTER:
        return connection
    return replace(connection, used={**connection.used, tool: now})


def lapse(connection: Connection, *, now: datetime) -> Connection:
    """It works no more; the person has to connect again."""
    return replace(connection, lapsed_at=now, claim=None, retry_at=None)


def disconnect(connection: Connection, *, now: datetime, was_revoked: bool | None) -> Connection:
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
        declared=connection.declared,
        version=connection.version,
    )
