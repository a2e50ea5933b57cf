"""The MCP client of a call: its identity and the name that it reports.

Risks: a client is mistaken for another client of the same person. A client is identified by the
client id of a verified access token if there is one, else by its own unverified name, which is
displayed as unverified.
"""

import hashlib

from msgspec import Struct

_SHOWN_CHARACTERS = 200
_WRITTEN_OUT = "\N{REPLACEMENT CHARACTER}"


class CallingClient(Struct, frozen=True, kw_only=True):
    """A client. `id` is the verified client id; None if only the client's own name is known.

    `apart` is the version and the declared capabilities of a client that uses its library's default
    name. It distinguishes such clients, which all have the same name.
    """

    name: str | None
    id: str | None = None
    apart: str | None = None

    @property
    def key(self) -> str:
        """A hash that identifies this client of one person, without revealing its name."""
        source, text = ("name", self.name or "") if self.id is None else ("id", self.id)
        apart = "" if self.apart is None or self.id is not None else f"\n{self.apart}"
        identity = f"{source}:{text}{apart}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(identity).hexdigest()[:32]


class SeenClient(Struct, frozen=True, kw_only=True):
    """A client as shown to its person: its key, and its names shortened to fit."""

    key: str
    name: str
    id: str | None = None

    @property
    def is_verified(self) -> bool:
        return self.id is not None


def storable_name(name: str) -> str:
    """Return a client's name in a form that can be stored: lone surrogates are escaped.

    Different names stay different: an escaped name starts with U+FFFD, and a name that already
    starts with U+FFFD is escaped too.
    """
    if name.startswith(_WRITTEN_OUT) or any("\ud800" <= letter <= "\udfff" for letter in name):
        doubled = name.replace("\\", "\\\\")
        return _WRITTEN_OUT + doubled.encode("utf-8", "backslashreplace").decode()
    return name


def seen(client: CallingClient) -> SeenClient:
    """Return the client in its stored form."""
    return SeenClient(
        key=client.key,
        name=(client.name or "")[:_SHOWN_CHARACTERS],
        id=None if client.id is None else client.id[:_SHOWN_CHARACTERS],
    )
