"""The tool call that a question belongs to."""

from dataclasses import dataclass
from typing import Final

from flows.elicitation.calling_client import CallingClient
from flows.errors import InvalidArguments

APPLICATION: Final = "the application"  # what a block is called where a tool has its name
_PROGRAM = " (API)"  # no program's name has parentheses, and no tool may have such a name


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """Which tool of which served server, with which arguments, for which client.

    `client` is what it calls itself, `client_id` what its access token proves, if it brought one.
    `client_apart` tells it from other clients with the same library's name (`CallingClient.apart`).
    `version` is that of the tool which runs, where a name stands for several (FastMCP).
    """

    server: str
    tool: str
    client: str | None
    arguments: str  # canonical JSON
    version: str | None = None
    client_id: str | None = None
    client_apart: str | None = None

    @property
    def calling_client(self) -> CallingClient:
        """What tells this client from others of the same person's."""
        return CallingClient(name=self.client, id=self.client_id, apart=self.client_apart)

    @property
    def version_parts(self) -> tuple[str, ...]:
        """What the keys of its calls have besides: nothing where the tool has no version."""
        return () if self.version is None else ("version", self.version)


def must_be_no_others_name(tool: str) -> None:
    """Check that an MCP tool does not have the name of an API program or of a block.

    Raises:
        InvalidArguments: It has. Questions, secrets and accounts of the program would be its own.
    """
    name = "".join(tool.split()).casefold()
    if name.endswith(_PROGRAM.strip().casefold()) or name == "".join(APPLICATION.split()):
        raise InvalidArguments(
            f"Nothing was run: a tool cannot be named {tool[:80]!r}. Names that end in "
            f'"{_PROGRAM.strip()}" stand for API programs, and "{APPLICATION}" stands for blocks '
            "`asking`. Rename the tool."
        )


def client_of(program: str) -> str:
    """Return what an API program is called where a tool or an MCP client has its name."""
    return program + _PROGRAM


def program_of(tool: str) -> str | None:
    """Return the API program that is called so in place of a tool; None for a tool or a block."""
    return tool.removesuffix(_PROGRAM) if tool.endswith(_PROGRAM) else None
