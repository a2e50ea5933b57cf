"""Ways to take a payment back against ways to have it in hand, and the end of each pair.

A cell says what whoever takes it is told, then what the holder comes to, and how the payment
stands in the end. A cell that begins with `(` is not tried yet; it names the finding it belongs to.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.held.holds import HOLDS
from tests.held.takes import TAKES

FILE = Path(__file__).parents[2] / "docs" / "payment-outcomes.md"
BEGIN, END = "<!-- held: begin -->", "<!-- held: end -->"
PENDING = "("

_AT_WORK = {
    "the person's page": "no button; delivered, spent",
    "`elicit payments refund`": "refuses; delivered, spent",
    "the API": "404; delivered, spent",
    "the clock": "leaves it; delivered, spent",
    "`elicit purge`": "refuses; delivered, spent",
    "a bank's claim": "disputed; delivered, disputed",
    "a claim that is won": "open; delivered, spent",
    "a cancel": "cancelled; work done, open",
    "the question's end": "expired; delivered, spent",
    "a store that fails over": "goes on; delivered, spent",
}
_CANCELLED = {"a cancel": "cancelled; stopped, open"}
_TASK = {
    **_AT_WORK,
    **_CANCELLED,
    "a bank's claim": "disputed; no such task, disputed",
}
TABLE: Mapping[str, Mapping[str, str]] = {
    "a tool call, 2025-11-25": {**_AT_WORK, **_CANCELLED},
    "a tool call, 2026-07-28": _AT_WORK,
    "a tool that `needs` it": {**_AT_WORK, **_CANCELLED},
    "a tool inside `once`": _AT_WORK,
    "a task, 2025-11-25": _TASK,
    "a task, 2026-07-28": _TASK,
    "a task inside `once`": {**_TASK, "a cancel": "cancelled; work done, open"},
    "a block `asking`": {**_AT_WORK, **_CANCELLED},
    "a program's run, inside `once`": {
        **_AT_WORK,
        **_CANCELLED,
        "the API": "409; delivered, spent",
        "a bank's claim": "disputed; raises, disputed",
    },
    "an answer over the API, told and not `taken`": {
        **_AT_WORK,
        **_CANCELLED,
        "the person's page": "refunds; 409, refunded",
        "`elicit payments refund`": "refunds; 409, refunded",
        "the API": "refunds; 409, refunded",
        "the clock": "refunds; 409, refunded",
        "`elicit purge`": "erases the rest; delivered, spent",
        "a bank's claim": "disputed; 409, disputed",
        "a cancel": "409; stopped, open",
    },
    "the lease of a process that died": {
        **_AT_WORK,
        **_CANCELLED,
        "the person's page": "refunds; told so, refunded",
        "`elicit payments refund`": "refunds; told so, refunded",
        "the clock": "refunds; told so, refunded",
        "`elicit purge`": "erases the rest; delivered, spent",
        "a bank's claim": "disputed; told so, disputed",
        "a cancel": "nobody; stopped, open",
    },
    "a result that may have arrived": {
        **_AT_WORK,
        **_CANCELLED,
        "`elicit payments refund`": "refunds; asked again, refunded",
        "`elicit purge`": "erases the rest; delivered, spent",
        "a bank's claim": "disputed; told so, disputed",
        "a cancel": "nobody; stopped, open",
    },
    "an open question for the same": dict.fromkeys(TAKES, "(XM5)"),
    "an open question for a permanent purchase": dict.fromkeys(TAKES, "(XM1)"),
}
# Ways to take it back that are not tried yet.
LATER: Mapping[str, str] = {
    "a store that lost the last seconds": "(XV2)",
    "an inquiry of a bank": "(XM4)",
    "a refund that fails later": "(XM6)",
}


def cells() -> Iterator[tuple[str, str]]:
    """Each pair that is tried."""
    for hold in HOLDS:
        for take in TAKES:
            if not TABLE[hold][take].startswith(PENDING):
                yield hold, take


def rendered() -> str:
    """The table as it stands in the document."""
    takes = [*TAKES, *LATER]
    lines = [f"| in hand | {' | '.join(takes)} |", f"|---|{'---|' * len(takes)}"]
    for hold, row in TABLE.items():
        said = [row[take] if take in row else LATER[take] for take in takes]
        lines.append(f"| {hold} | {' | '.join(said)} |")
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin
    assert end
    return f"{before}{begin}\n{rendered()}{end}{after}"
