"""Lists of records for a page: one read of the rows, one read of the data keys, then the filters.

Risks: a list reads or opens so much that the server stops for others. So it reads a limited number
of rows at once, says if there are more, and lets other work run while it opens them.
"""

import asyncio
import re
from collections.abc import Mapping
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
    """The rows of a list. `has_more`: the store has more; `unreadable`: how many cannot be read."""

    rows: list[T]
    has_more: bool
    unreadable: int


async def listed(
    service: Service, kind: type[T], *, owner: str | None = None, at_most: int = ROWS_AT_MOST
) -> Listed[T]:
    """Return the rows of this kind, of one owner or of all, with two reads of the store."""
    elicitations, found, unreadable = service.elicitations, list[T](), 0
    records = await elicitations.store.list(KINDS[kind], owner=owner, limit=at_most)
    await elicitations.owners.cache({each.owner for each in records}, at_most=at_most)
    for number, record in enumerate(records, start=1):
        try:
            found.append(await elicitations.rows.open(record, kind))
        except Unreadable:
            unreadable += 1
        if number % _OPENED_AT_ONCE == 0:
            await asyncio.sleep(0)  # let other requests run
    return Listed(rows=found, has_more=len(records) == at_most, unreadable=unreadable)


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
