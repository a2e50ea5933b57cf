"""docs/reference/clients.md, created from the runs: a row for each kind of client."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from tests.clients.catalog import CLIENTS, FRAMEWORKS, WITHOUT_STREAMS
from tests.clients.env import KINDS, by_hand, shop_open
from tests.clients.reaching import KnownClient, Reached, reach
from tests.clients.scripted import REQUIRED, CallResult
from tests.support.clock import Clock

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "reference" / "clients.md"
_BEGIN, _END = "<!-- what was seen -->\n", "<!-- until here -->\n"
_HEAD = (
    "| client | revision | question | the person sees | the model receives | after |\n"
    "|---|---|---|---|---|---|\n"
)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The result of a run, in the words of the page."""

    sees: str
    results: str
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A result that is the same for several kinds of questions and several revisions."""

    revisions: tuple[str, ...]
    kinds: tuple[str, ...]
    seen: Seen

    def cells(self, names: str) -> str:
        kinds = "everything" if self.kinds == KINDS else ", ".join(self.kinds)
        cells = (names, ", ".join(self.revisions), kinds, self.seen.sees, self.seen.results)
        return f"| {' | '.join(cells)} | {self.seen.seconds} s |\n"


@cache
def seen(client: KnownClient, revision: str, kind: str) -> Reached:
    """Run a client in its own application, and cache the result."""

    async def play(clock: Clock) -> Reached:
        async with shop_open(clock, has_streams=client not in WITHOUT_STREAMS) as env:
            return await reach(env, client, revision, kind)

    return by_hand(play)


def document() -> str:
    """Return the page: its text as written, and the table from the runs."""
    written = DOCUMENT.read_text("utf-8")
    before, _, _ = written.partition(_BEGIN)
    _, _, after = written.partition(_END)
    return f"{before}{_BEGIN}{_HEAD}{_table()}{_END}{after}"


def _table() -> str:
    by_name: dict[str, list[KnownClient]] = {}
    for client in (*CLIENTS, *FRAMEWORKS, *WITHOUT_STREAMS):
        by_name.setdefault(client.name, []).append(client)
    rows = {name: _rows(clients) for name, clients in by_name.items()}
    blocks = _grouped((rows[name], name) for name in rows)
    return "".join(row.cells("; ".join(names)) for block, names in blocks.items() for row in block)


def _rows(clients: Iterable[KnownClient]) -> tuple[Row, ...]:
    """Return the rows of clients with the same name."""
    kinds_of = _grouped(
        ((revision, _shown(seen(client, revision, kind))), kind)
        for client in clients
        for revision in client.declares
        for kind in KINDS
    )
    revisions_of = _grouped(
        ((kinds, shown), revision) for (revision, shown), kinds in kinds_of.items()
    )
    return tuple(
        Row(revisions=revisions, kinds=kinds, seen=shown)
        for (kinds, shown), revisions in revisions_of.items()
    )


def _shown(reached: Reached) -> Seen:
    assert reached.sees is not None  # None would mean "never"
    return Seen(
        sees=reached.sees, results=_results_in_words(reached.results), seconds=reached.seconds
    )


def _results_in_words(all_results: tuple[CallResult, ...]) -> str:
    """Return what the model receives before the tool's own result."""
    results = [_words_of(each) for each in all_results[:-1]]
    return ", then ".join(results) if results else "what the tool returns"


def _words_of(result: CallResult) -> str:
    if result.is_from_client:
        return "a timeout of the client"
    if result.code == str(REQUIRED):
        return f"{REQUIRED}, which is for the client"
    code = f"`{result.code}`: " if result.code else ""
    return f"{code}“{result.first_sentence}”"


def _grouped(pairs: Iterable[tuple[K, V]]) -> Mapping[K, tuple[V, ...]]:
    groups: dict[K, dict[V, None]] = {}
    for key, value in pairs:
        groups.setdefault(key, {})[value] = None
    return {key: tuple(values) for key, values in groups.items()}
