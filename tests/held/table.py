"""The table of ways to take a payment back and ways to hold it, with the outcome of each pair.

A cell has three parts: the result of the attempt to take the payment back, the result that the
holder gets, and the final status of the payment. A test checks each cell.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.held.holds import HOLDS

FILE = Path(__file__).parents[2] / "docs" / "reference" / "payment-outcomes.md"
BEGIN, END = "<!-- held: begin -->", "<!-- held: end -->"

_AT_WORK = {
    "the refund button on `/payments`": "no button; delivered, spent",
    "`elicit payments refund`": "refuses; delivered, spent",
    "a refund over the API": "404; delivered, spent",
    "the automatic refund": "does nothing; delivered, spent",
    "`elicit purge`": "refuses; delivered, spent",
    "a dispute": "disputed; delivered, disputed",
    "a dispute that is won": "open; delivered, spent",
    "a cancellation": "cancelled; work done, open",
    "the question expires": "expired; delivered, spent",
    "the store fails over": "continues; delivered, spent",
    "the store loses the last seconds": "continues; delivered, spent",
    "the store loses the delivery": "on the operator's list; delivered, open",
    "a bank inquiry": "open; delivered, spent",
    "a refund that fails later": "refund failed; delivered, refunding",
}
_CANCELLED = {"a cancellation": "cancelled; stopped, open"}
_TASK = {
    **_AT_WORK,
    **_CANCELLED,
    "a dispute": "disputed; no such task, disputed",
    "a refund that fails later": "refund failed; no such task, refunding",
}
# The payment was disputed, so the same purchase must be paid for again.
_OPEN_QUESTION = {
    "the refund button on `/payments`": "no button; waits for payment, disputed",
    "`elicit payments refund`": "refuses; waits for payment, disputed",
    "a refund over the API": "409; waits for payment, disputed",
    "the automatic refund": "does nothing; waits for payment, disputed",
    "`elicit purge`": "erases other data; cancelled, disputed",
    "a dispute": "disputed; waits for payment, disputed",
    "a dispute that is won": "open; delivered, spent",
    "a cancellation": "cancelled; stopped, disputed",
    "the question expires": "expired; expired, disputed",
    "the store fails over": "continues; waits for payment, disputed",
    "the store loses the last seconds": "continues; waits for payment, disputed",
    "the store loses the delivery": "disputed; waits for payment, disputed",
    "a bank inquiry": "disputed; waits for payment, disputed",
    "a refund that fails later": "disputed; waits for payment, disputed",
}
TABLE: Mapping[str, Mapping[str, str]] = {
    "a tool call, 2025-11-25": {**_AT_WORK, **_CANCELLED},
    "a tool call, 2026-07-28": _AT_WORK,
    "a tool that `needs` the payment": {**_AT_WORK, **_CANCELLED},
    "a tool inside `once`": _AT_WORK,
    "a task, 2025-11-25": _TASK,
    "a task, 2026-07-28": _TASK,
    "a task inside `once`": {**_TASK, "a cancellation": "cancelled; work done, open"},
    "an `asking` block": {**_AT_WORK, **_CANCELLED},
    "a program's run, inside `once`": {
        **_AT_WORK,
        **_CANCELLED,
        "a refund over the API": "409; delivered, spent",
        "a dispute": "disputed; raises, disputed",
        "a refund that fails later": "refund failed; raises, refunding",
    },
    "an API answer that is not yet `taken`": {
        **_AT_WORK,
        **_CANCELLED,
        "the refund button on `/payments`": "refunds; 409, refunded",
        "`elicit payments refund`": "refunds; 409, refunded",
        "a refund over the API": "refunds; 409, refunded",
        "the automatic refund": "refunds; 409, refunded",
        "`elicit purge`": "erases other data; delivered, spent",
        "a dispute": "disputed; 409, disputed",
        "a refund that fails later": "refund failed; 409, refunding",
        "a cancellation": "409; stopped, open",
    },
    "a call whose process died": {
        **_AT_WORK,
        **_CANCELLED,
        "the refund button on `/payments`": "refunds; error, refunded",
        "`elicit payments refund`": "refunds; error, refunded",
        "the automatic refund": "refunds; error, refunded",
        "`elicit purge`": "erases other data; delivered, spent",
        "a dispute": "disputed; error, disputed",
        "a refund that fails later": "refund failed; error, refunding",
        "a cancellation": "nothing to cancel; stopped, open",
    },
    "a result that may have been delivered": {
        **_AT_WORK,
        **_CANCELLED,
        "`elicit payments refund`": "refunds; asks for a new payment, refunded",
        "`elicit purge`": "erases other data; delivered, spent",
        "a dispute": "disputed; error, disputed",
        "a refund that fails later": "refund failed; error, refunding",
        "a cancellation": "nothing to cancel; stopped, open",
    },
    "a new question for the same payment": _OPEN_QUESTION,
    "a new question for a permanent purchase": _OPEN_QUESTION,
}


def cells() -> Iterator[tuple[str, str]]:
    """Yield each pair of names."""
    for hold in HOLDS:
        for claim in TABLE[hold]:
            yield hold, claim


def rendered() -> str:
    """Return the table as Markdown."""
    takes = [*_AT_WORK]
    lines = [f"| the payment is used by | {' | '.join(takes)} |", f"|---|{'---|' * len(takes)}"]
    for hold, row in TABLE.items():
        lines.append(f"| {hold} | {' | '.join(row[claim] for claim in takes)} |")
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin
    assert end
    return f"{before}{begin}\n{rendered()}{end}{after}"
