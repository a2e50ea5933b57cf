"""A connection: an account that a person connected for one served server, as it is stored.

What could go wrong: an account that serves another owner, another server, or another provider of
the same name than the one it came from. Whoever looks one up names all three in its key.
"""

from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace


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
    version: int = 0

    @property
    def status(self) -> str:
        return "connected"

    @property
    def due_at(self) -> None:
        return None

    @property
    def erase_at(self) -> None:
        return None

    def __repr__(self) -> str:
        return f"Connection({self.id!r}, {self.provider!r}, {self.label!r})"

    def is_usable(self, *, account: str | None, now: datetime) -> bool:
        """Whether it is the account that is wanted, and its key works still."""
        is_wanted = account in (None, self.person_id, self.label)
        return is_wanted and (self.expires_at is None or now < self.expires_at)


def allow(connection: Connection, tool: str) -> Connection:
    """The tool may use it from now on."""
    if tool in connection.tools:
        return connection
    return replace(connection, tools=(*connection.tools, tool))


def renewed(connection: Connection, former: Connection) -> Connection:
    """The same account connected again: whoever might use it still may."""
    tools = tuple(dict.fromkeys((*former.tools, *connection.tools)))
    return replace(connection, tools=tools, version=former.version)
