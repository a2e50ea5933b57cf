"""The doors, a rule with its cells, and all rules that the modules of this folder list."""

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias

from tests.doors.world import World


class Door(StrEnum):
    """A way in or out of the server, as docs/reference/threat-table.md names it."""

    TOOL_2025 = "MCP tool, 2025-11-25"
    TOOL_2026 = "MCP tool, 2026-07-28"
    TASK = "task"
    BLOCK = "`asking` block"
    API = "HTTP API"
    CLIENT = "`webapp.client`"
    HOOK = "hook"
    PAGE = "person's page"
    CLIENT_FORM = "form in the MCP client"
    APPROVER = "approver's page"
    INBOX = "inbox over the API"
    APPROVING_KEY = "API key that approves"
    TRUSTED_CODE = "`complete_elicitation`"
    OWN_PAGES = "person's home and list pages"
    SIGN_IN = "sign-in and pairing"
    USER_CODE = "user code"
    CALLBACK = "provider's callback"
    PROXY = "account proxy"
    WEBHOOK = "provider's webhook"
    EVENT = "outgoing webhook"
    COMMAND = "command"
    MEMORY = "memory"
    SQLITE = "SQLite"
    POSTGRES = "PostgreSQL"
    VALKEY = "Valkey"
    PROCESS = "another process"


ASKING: Final = (
    *(Door.TOOL_2025, Door.TOOL_2026, Door.TASK, Door.BLOCK),
    *(Door.API, Door.CLIENT),
)
ANSWERING: Final = (
    *(Door.PAGE, Door.CLIENT_FORM, Door.APPROVER),
    *(Door.INBOX, Door.APPROVING_KEY, Door.TRUSTED_CODE),
)
ENTERING: Final = (Door.SIGN_IN, Door.USER_CODE)
PROVIDERS: Final = (Door.CALLBACK, Door.PROXY, Door.WEBHOOK)
STORES: Final = (Door.MEMORY, Door.SQLITE, Door.POSTGRES, Door.VALKEY, Door.PROCESS)
# All doors are in one of these groups.
OTHERS: Final = (Door.HOOK, Door.OWN_PAGES, Door.EVENT, Door.COMMAND)

Probe: TypeAlias = Callable[[World, Door], Awaitable[None]]
Cell: TypeAlias = Probe | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule. `source` names the promise, `cells` has a probe or a reason for each door."""

    id: str
    says: str
    source: str
    cells: Mapping[Door, Cell]


def every(doors: Iterable[Door], cell: Cell) -> dict[Door, Cell]:
    """Return the same cell for each of these doors."""
    return dict.fromkeys(doors, cell)


def rules() -> list[Rule]:
    """Return the rules of all modules in this folder, in the order of the modules' names."""
    names = sorted(each.name for each in pkgutil.iter_modules([str(Path(__file__).parent)]))
    found: list[Rule] = []
    for name in names:
        if name != "__main__" and not name.startswith("test_"):
            found += getattr(importlib.import_module(f"tests.doors.{name}"), "RULES", [])
    return found
