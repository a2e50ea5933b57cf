"""The tool call of a question, and its MCP client: its identity, its name and its capabilities.

Risks: a client is mistaken for another client of the same person. A client is identified by the
client id of a verified access token if there is one, else by its own unverified name, which is
displayed as unverified. Another risk: a client that declares `elicitation: {}` is treated as if it
supported no mode. That declaration is older than the modes, so it counts as `form`. Source:
ClientCapabilities of the 2025-06-18, 2025-11-25 and 2026-07-28 schemas.
"""

import hashlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Final, cast

from msgspec import Struct

from flows.elicitation.misuse import Explained
from flows.errors import InvalidArguments, InvalidQuestion

_SHOWN_CHARACTERS = 200
_WRITTEN_OUT = "\N{REPLACEMENT CHARACTER}"


class CallingClient(Struct, frozen=True, kw_only=True):
    """A client. `id` is the verified client id; None if only the client's own name is known.

    `apart` is the version and the declared capabilities of a client that uses its library's default
    name. It distinguishes such clients, which all have the same name. `title` is for pages only.
    """

    name: str | None
    id: str | None = None
    apart: str | None = None
    title: str | None = None

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
    title: str | None = None


def storable_name(name: str) -> str:
    """Return a client's name in a form that can be stored: lone surrogates are escaped.

    Different names stay different: an escaped name starts with U+FFFD, and a name that already
    starts with U+FFFD is escaped too.
    """
    if name.startswith(_WRITTEN_OUT) or any(
        "\ud800" <= character <= "\udfff" for character in name
    ):
        doubled = name.replace("\\", "\\\\")
        return _WRITTEN_OUT + doubled.encode("utf-8", "backslashreplace").decode()
    return name


def seen(client: CallingClient) -> SeenClient:
    """Return the client in its stored form."""
    return SeenClient(
        key=client.key,
        name=(client.name or "")[:_SHOWN_CHARACTERS],
        id=None if client.id is None else client.id[:_SHOWN_CHARACTERS],
        title=None if client.title is None else client.title[:_SHOWN_CHARACTERS],
    )


APPLICATION: Final = "the application"  # the tool name for questions of an `asking` block
_PROGRAM = " (API)"  # marks the name of a program; no MCP tool may have a name with this end


class DescribedTool(Struct, frozen=True, kw_only=True):
    """A tool in its author's words, for pages only: these words identify no question.

    `title` is the tool's title, and `arguments` are names of arguments with their titles, in the
    order of the schema. `is_destructive` is the tool's destructiveHint.
    """

    name: str
    title: str | None = None
    description: str | None = None
    arguments: tuple[tuple[str, str], ...] = ()
    is_destructive: bool = False

    @property
    def titled(self) -> "DescribedTool | None":
        """The name and the title alone, or None without a title."""
        return None if self.title is None else DescribedTool(name=self.name, title=self.title)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallingPerson(Explained):
    """The person who calls a tool, as `elicit.caller` returns them, for an author's own tables.

    Attributes:
        id: The person's id at this server: the same in each call, process and revision, and after
            a change of ELICIT_SECRET. Another server and another store have another id for the same
            person. Nobody can compute a name from the id. None if the person is unknown.
        issuer: The issuer that verified the person. None for a person of this machine, for an
            application's own user, and if the person is unknown.
        client: The client's id in its access token, or the name that the client gave itself.
        is_client_verified: True if `client` is the id in an access token.
        is_local: True for the user of this machine who runs the server.
    """

    id: str | None
    issuer: str | None = None
    client: str | None = None
    is_client_verified: bool = False
    is_local: bool = False

    @property
    def is_known(self) -> bool:
        """True if `id` identifies the person. False for an anonymous caller."""
        return self.id is not None


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call of a served server's tool: its name, its arguments and the client.

    `client` is the client's own name, `client_id` the id in its access token, if it sent one.
    `client_apart` distinguishes clients that use the same library and so have the same name
    (`CallingClient.apart`). `version` is the running tool's version if several tools have one name
    (FastMCP). `described`, `server_title` and `client_title` are for pages only; the client's title
    is unverified.
    """

    server: str
    tool: str
    client: str | None
    arguments: str  # canonical JSON
    version: str | None = None
    client_id: str | None = None
    client_apart: str | None = None
    described: DescribedTool | None = None
    server_title: str | None = None
    client_title: str | None = None

    @property
    def calling_client(self) -> CallingClient:
        """The identity of the client among the clients of the same person."""
        return CallingClient(
            name=self.client, id=self.client_id, apart=self.client_apart, title=self.client_title
        )

    @cached_property
    def version_parts(self) -> tuple[str, ...]:
        """The tool's version for the keys of its calls; empty if the tool has no version."""
        return () if self.version is None else ("version", self.version)


def must_be_no_others_name(tool: str) -> None:
    """Check that an MCP tool does not have the name of an API program or `asking` block.

    Raises:
        InvalidArguments: The tool has such a name. It would get the questions, secrets and
            accounts of the program.
    """
    name = "".join(tool.split()).casefold()
    if name.endswith(_PROGRAM.strip().casefold()) or name == "".join(APPLICATION.split()):
        raise InvalidArguments(
            f"Nothing was run: a tool cannot be named {tool[:80]!r}. Names that end in "
            f'"{_PROGRAM.strip()}" stand for API programs, and "{APPLICATION}" stands for blocks '
            "`asking`. Rename the tool."
        )


def client_of(program: str) -> str:
    """Return an API program's name for use in place of a tool's or an MCP client's name."""
    return program + _PROGRAM


def program_of(tool: str) -> str | None:
    """Return the API program that a tool name stands for, or None for a tool or a block."""
    return tool.removesuffix(_PROGRAM) if tool.endswith(_PROGRAM) else None


# A running tool body, and the names that it used with `once`.
#
# Risks: `once` in a loop, where the second turn silently gets the first result and does nothing. A
# body can therefore use each name once, and needs a different `key` for each repetition.
class ToolBody:
    """An execution of a tool's function, called by the client or by another tool.

    Each inner call is a body of its own, identified by its path: the call, and the number of equal
    calls before it.
    """

    def __init__(self, path: str = "") -> None:
        self.path = path
        self._inner: dict[str, int] = {}
        self._used = set[tuple[str, str | int | None]]()

    def inner(self, what: str) -> "ToolBody":
        """Return the context for a nested tool call. `what` names the tool and its arguments."""
        number = self._inner[what] = self._inner.get(what, 0) + 1
        return ToolBody(f"{self.path}/{what} {number}")

    @contextmanager
    def using(self, name: str, key: str | int | None) -> Generator[None]:
        """Reserve the name while `once` runs, and permanently after it succeeded.

        Raises InvalidQuestion if the body has already used that name with that key.
        """
        if (name, key) in self._used:
            how = "without a key" if key is None else f"with the key {key!r}"
            raise InvalidQuestion(
                f"once({name!r}) was already used {how} in this run of the tool, so the work "
                f"was not done. Give each call of once its own key, as in once({name!r}, work, "
                "key=item)."
            )
        self._used.add((name, key))
        try:
            yield
        except BaseException:
            self._used.discard((name, key))
            raise


MODES: Final = ("form", "url")


def modes_of(capabilities: object) -> frozenset[str]:
    """Return the modes in which a client with these capabilities can be asked."""
    declared = _object(capabilities, "elicitation")
    if declared is None:
        return frozenset()
    modes = [one for one in MODES if _object(declared, one) is not None]
    return frozenset(modes or ("form",))


def must_be_mode(mode: str) -> None:
    """Raise InvalidQuestion if `mode` is not an elicitation mode."""
    if mode not in MODES:
        raise InvalidQuestion(f"{mode!r} is not an elicitation mode; write form or url.")


def must_be_capabilities(given: object) -> None:
    """Raise InvalidQuestion if `given` cannot be the capabilities of a client."""
    name = type(given).__name__
    if not isinstance(given, Mapping | None) and not hasattr(given, "elicitation"):
        raise InvalidQuestion(
            f"{name} is not a client's capabilities: pass the ones that the client declared, "
            "such as ctx.session.client_capabilities."
        )


def _object(capabilities: object, name: str) -> object:
    """Return the part with this name if it is an object, even an empty one, and else None."""
    if isinstance(capabilities, Mapping):
        part = cast("Mapping[str, object]", capabilities).get(name)
    else:
        part = getattr(capabilities, name, None)
    return None if isinstance(part, bool | int | float | str | list) else part
