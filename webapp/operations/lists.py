"""Lists of records for a page: one read of the rows, one read of the data keys, then the filters.

Risks: a list reads or opens so much that the server stops for others. So it reads a limited number
of rows at once, says if there are more, and lets other work run while it opens them.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Final, Generic, TypeVar

from flows.errors import Unreadable
from webapp.records.values import KINDS, Value
from webapp.service import Service

ROWS_AT_MOST: Final = 10_000
_OPENED_AT_ONCE: Final = 100
_AGE: Final = re.compile(r"(\d{1,6})(min|h|d)")
_UNITS: Final[Mapping[str, timedelta]] = {
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
T = TypeVar("T", bound=Value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(Generic[T]):
    """The rows of a list. `unreadable` is the number of rows that cannot be read.

    `more_after` is the id after which the store has more rows, or None.
    """

    rows: list[T]
    more_after: str | None
    unreadable: int


async def listed(
    service: Service,
    kind: type[T],
    *,
    owner: str | None = None,
    after: str | None = None,
    at_most: int = ROWS_AT_MOST,
) -> Listed[T]:
    """Return the rows of this kind, of one owner or of all, with two reads of the store.

    `after` is the id of the last row that the caller has seen.
    """
    elicitations, found, unreadable = service.elicitations, list[T](), 0
    records = await elicitations.store.list(KINDS[kind], owner=owner, after=after, limit=at_most)
    await elicitations.owners.cache({each.owner for each in records}, at_most=at_most)
    for number, record in enumerate(records, start=1):
        try:
            found.append(await elicitations.rows.open(record, kind))
        except Unreadable:
            unreadable += 1
        if number % _OPENED_AT_ONCE == 0:
            await asyncio.sleep(0)  # let other requests run
    more_after = records[-1].id if len(records) == at_most else None
    return Listed(rows=found, more_after=more_after, unreadable=unreadable)


async def each_row(
    service: Service, kind: type[T], *, at_most: int = ROWS_AT_MOST
) -> AsyncIterator[T]:
    """Yield all rows of this kind, with two reads of the store for each `at_most` rows.

    Rows that cannot be read are skipped.
    """
    part = await listed(service, kind, at_most=at_most)
    while True:
        for row in part.rows:
            yield row
        if part.more_after is None:
            return
        part = await listed(service, kind, after=part.more_after, at_most=at_most)


def matches(text: str, pattern: str) -> bool:
    """Return True if the text fits the pattern, in which * matches anything."""
    return fnmatchcase(text.casefold(), pattern.casefold())


def is_within(moment: datetime | None, *, since: datetime | None, until: datetime | None) -> bool:
    if moment is None:
        return since is None and until is None
    return (since is None or moment >= since) and (until is None or moment < until)


def moment_of(text: str, *, now: datetime) -> datetime:
    """Return the time that an operator wrote: in UTC, or as an age such as 90min, 12h or 7d.

    Raises:
        ValueError: The text is neither.
    """
    try:
        if (age := _AGE.fullmatch(text)) is not None:
            return now - int(age[1]) * _UNITS[age[2]]
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time: write it in UTC, such as 2026-03-01T03:12, or an age, such "
            "as 90min or 7d"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
