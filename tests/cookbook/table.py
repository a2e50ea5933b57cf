"""The table in docs/how-to/cookbook.md: how often the lines of each example ran, for each client.

The test kit counts (`person.replayed`), without replay mode and with it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tests.cookbook.servers import (
    CELLS,
    DECLARES,
    OPTIONS,
    PLAYS,
    REVISIONS,
    Cell,
    Vendors,
    load,
)
from tests.support.cli import PROJECT
from webapp.testing import ReplayedCall, elicit_person

DOCUMENT: Final = PROJECT / "docs" / "how-to" / "cookbook.md"
_COLUMNS: Final = [(revision, declares) for revision in REVISIONS for declares in DECLARES]
_HEADING: Final = "## How often the lines run\n"
_HEAD: Final = f"""{_HEADING}
<!-- Written by `python -m tests.cookbook`; change tests/cookbook/table.py, not this page. -->

The table shows how often the lines between two awaits ran when the person answered all questions.
The test kit counted (`watch=True`), and `MCPServer` and `FastMCP` have the same numbers. The
columns are the protocol revisions, with what the client declares. In replay mode, the numbers are
the same for each client. In a loop, the lines of all iterations are added up. No run repeated a
side effect outside of `once`.

"""


async def measured(
    example: str, *, replay: bool, cells: Sequence[Cell] = CELLS
) -> Mapping[Cell, ReplayedCall]:
    """Run the usual path of an example in these cells, and return its calls by cell."""
    found: dict[Cell, ReplayedCall] = {}
    for library, revision, declares in cells:
        module = load(example, library)
        async with elicit_person(
            module.mcp,
            revision=revision,
            declares=DECLARES[declares],
            outside=Vendors(),
            replay=replay,
            watch=True,
            **OPTIONS.get(example, {}),
        ) as person:
            await PLAYS[example](person, module)
        found[library, revision, declares] = person.replayed[-1]
    return found


def rows(
    example: str, watched: Mapping[Cell, ReplayedCall], replayed: Mapping[Cell, ReplayedCall]
) -> str:
    """Return the rows of an example. Each library must have run its lines equally often."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for (_, revision, declares), call in watched.items():
        counted = counts.setdefault((revision, declares), _counts(call))
        assert counted == _counts(call), (example, revision, declares)
    (again,) = {tuple(_counts(call).items()) for call in replayed.values()}
    return "\n".join(
        f"| `{example}.py`, {lines} | "
        + " | ".join(str(counts[column][lines]) for column in _COLUMNS)
        + f" | {ran} |"
        for lines, ran in again
    )


def document(sections: Iterator[str]) -> str:
    """Return the page with these rows. The text before the table stays as it is."""
    before, heading, _ = DOCUMENT.read_text("utf-8").partition(_HEADING)
    assert heading
    names = [f"{revision}, {declares}" for revision, declares in _COLUMNS]
    head = f"| lines | {' | '.join(names)} | replay mode |\n|---|{'---|' * (len(names) + 1)}\n"
    return before + _HEAD + head + "\n".join(sections) + "\n"


def _counts(call: ReplayedCall) -> Counter[str]:
    """Return how often each range of lines ran. The iterations of a loop are added up."""
    counts = Counter[str]()
    for lines in call.lines:
        counts[f"{_place(lines.begins)} to {_place(lines.ends)}"] += lines.ran
    return counts


def _place(text: str) -> str:
    """Return "line 36 (confirm)" for "batch.py:36 confirm 'Pay R-1?'"."""
    file, colon, rest = text.partition(":")
    if not colon:
        return file
    number, _, verb = rest.partition(" '")[0].partition(" ")
    return f"line {number} ({verb})" if verb else f"line {number}"
