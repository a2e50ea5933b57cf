"""The MCP client that a call came through: what tells it from others, and what it calls itself.

What could go wrong: one that is taken for another of the same person's. It is told by the client id
of a verified access token where the call brought one; else by the name that it gives itself, which
proves nothing, and whoever is shown it is told so.
"""

import hashlib

from msgspec import Struct

_SHOWN_CHARACTERS = 200
_WRITTEN_OUT = "\N{REPLACEMENT CHARACTER}"


class CallingClient(Struct, frozen=True, kw_only=True):
    """`id` is the verified client id; None where there is only the name that it gives itself.

    `apart` tells clients apart whose name is their library's: their version, and what they declare.
    """

    name: str | None
    id: str | None = None
    apart: str | None = None

    @property
    def key(self) -> str:
        """The same for the same client of one person; without what it says in it."""
        told_by, text = ("name", self.name or "") if self.id is None else ("id", self.id)
        apart = "" if self.apart is None or self.id is not None else f"\n{self.apart}"
        whole = f"{told_by}:{text}{apart}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(whole).hexdigest()[:32]


class SeenClient(Struct, frozen=True, kw_only=True):
    """A client as its person is shown it: its key, and as much of its names as fits."""

    key: str
    name: str
    id: str | None = None

    @property
    def is_verified(self) -> bool:
        return self.id is not None


def kept_name(name: str) -> str:
    """What a client calls itself, as it can be kept: half letters are written out.

    Two names stay two: what is written out begins with a sign of its own, and so does any other
    name that begins with that.
    """
    if name.startswith(_WRITTEN_OUT) or any("\ud800" <= letter <= "\udfff" for letter in name):
        doubled = name.replace("\\", "\\\\")
        return _WRITTEN_OUT + doubled.encode("utf-8", "backslashreplace").decode()
    return name


def seen(client: CallingClient) -> SeenClient:
    """It as it is kept."""
    return SeenClient(
        key=client.key,
        name=(client.name or "")[:_SHOWN_CHARACTERS],
        id=None if client.id is None else client.id[:_SHOWN_CHARACTERS],
    )
