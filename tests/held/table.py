"""The table of ways to take a payment back and ways to hold it, with the outcome of each pair.

A cell has three parts: what the way to take the payment back returns, what the holder gets, and the
final status of the payment. A test checks each cell.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.held.holds import HOLDS

FILE = Path(__file__).parents[2] / "docs" / "reference" / "payment-outcomes.md"
BEGIN, END = "<!-- held: begin -->", "<!-- held: end -->"

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
    "a store that lost the last seconds": "goes on; delivered, spent",
    "a store that lost the delivery": "on the operator's list; delivered, open",
    "an inquiry of a bank": "open; delivered, spent",
    "a refund that fails later": "refund failed; delivered, refunding",
}
_CANCELLED = {"a cancel": "cancelled; stopped, open"}
_TASK = {
    **_AT_WORK,
    **_CANCELLED,
    "a bank's claim": "disputed; no such task, disputed",
    "a refund that fails later": "refund failed; no such task, refunding",
}
# The payment was disputed, so the same purchase must be paid for again.
_OPEN_QUESTION = {
    "the person's page": "no button; to be paid, disputed",
    "`elicit payments refund`": "refuses; to be paid, disputed",
    "the API": "409; to be paid, disputed",
    "the clock": "leaves it; to be paid, disputed",
    "`elicit purge`": "erases the rest; cancelled, disputed",
    "a bank's claim": "disputed; to be paid, disputed",
    "a claim that is won": "open; delivered, spent",
    "a cancel": "cancelled; stopped, disputed",
    "the question's end": "expired; expired, disputed",
    "a store that fails over": "goes on; to be paid, disputed",
    "a store that lost the last seconds": "goes on; to be paid, disputed",
    "a store that lost the delivery": "disputed; to be paid, disputed",
    "an inquiry of a bank": "disputed; to be paid, disputed",
    "a refund that fails later": "disputed; to be paid, disputed",
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
        "a refund that fails later": "refund failed; raises, refunding",
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
        "a refund that fails later": "refund failed; 409, refunding",
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
        "a refund that fails later": "refund failed; told so, refunding",
        "a cancel": "nobody; stopped, open",
    },
    "a result that may have arrived": {
        **_AT_WORK,
        **_CANCELLED,
        "`elicit payments refund`": "refunds; asked again, refunded",
        "`elicit purge`": "erases the rest; delivered, spent",
        "a bank's claim": "disputed; told so, disputed",
        "a refund that fails later": "refund failed; told so, refunding",
        "a cancel": "nobody; stopped, open",
    },
    "an open question for the same": _OPEN_QUESTION,
    "an open question for a permanent purchase": _OPEN_QUESTION,
}


def cells() -> Iterator[tuple[str, str]]:
    """Yield each pair of names."""
    for hold in HOLDS:
        for take in TABLE[hold]:
            yield hold, take


def rendered() -> str:
    """Return the table as Markdown."""
    takes = [*_AT_WORK]
    lines = [f"| in hand | {' | '.join(takes)} |", f"|---|{'---|' * len(takes)}"]
    for hold, row in TABLE.items():
        lines.append(f"| {hold} | {' | '.join(row[take] for take in takes)} |")
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin
    assert end
    return f"{before}{begin}\n{rendered()}{end}{after}"
