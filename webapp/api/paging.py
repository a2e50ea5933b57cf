"""Pages of a list: rows in the order of the store, and behind which one to go on.

What could go wrong: a list that costs more the more others have. So a page reads so many rows and
no more; where few of them are the reader's it is short, and there is more behind it all the same.
"""

from collections.abc import Callable
from typing import Annotated, Final, TypeAlias, TypeVar

from litestar.params import QueryParameter

from flows.errors import Unreadable
from webapp.records.values import KINDS, Value
from webapp.service import Service

LISTED_AT_MOST: Final = 100
PAGES_READ_AT_MOST: Final = 5  # of rows, for one page of a list
T = TypeVar("T", bound=Value)
After: TypeAlias = Annotated[str | None, QueryParameter(pattern="^[A-Za-z0-9_~-]{1,64}$")]
Limit: TypeAlias = Annotated[int, QueryParameter(ge=1, le=LISTED_AT_MOST)]


async def page_of(
    service: Service,
    kind: type[T],
    *,
    owner: str | None,
    sees: Callable[[T], bool],
    status: str | None = None,
    after: str | None,
    limit: int,
) -> tuple[list[T], str | None]:
    """The rows, and behind what to go on: the end of an id, where they are one owner's.

    That is None where nothing follows.
    """
    rows, whose = service.elicitations.rows, owner or ""
    found, last = list[T](), None if after is None else whose + after
    for _ in range(PAGES_READ_AT_MOST):
        page = await service.elicitations.store.list(
            KINDS[kind], owner=owner, status=status, after=last, limit=LISTED_AT_MOST
        )
        for record in page:
            last = record.id
            try:
                current = await rows.open(record, kind)
            except Unreadable:
                continue
            if sees(current):
                found.append(current)
            if len(found) == limit:
                return found, last.removeprefix(whose)
        if len(page) < LISTED_AT_MOST:
            return found, None
    return found, None if last is None else last.removeprefix(whose)
