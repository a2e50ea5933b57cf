"""Pages of a list: rows in the store's order, and the position where the next page starts.

Risks: a list becomes slower the more data other people have. So a page reads a limited number of
rows. If the reader may see few of them, the page is short although more pages follow. The position
is the id of the last row that was read, which may be another person's row. So in a list of several
owners, the position is encrypted for this server.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Final, NamedTuple, TypeAlias, TypeVar

from litestar.params import QueryParameter

from flows.crypto.tokens import MAXIMUM_TEXT_BYTES, Purpose
from flows.errors import InvalidQuestion, InvalidToken, Unreadable
from webapp.records.values import KINDS, Value
from webapp.service import Service

LISTED_AT_MOST: Final = 100
# the maximum number of pages that are read from the store for one page of a list
PAGES_READ_AT_MOST: Final = 5
_SPANS_READ_AT_MOST: Final = 20  # the maximum number of spans for one page of a list
T = TypeVar("T", bound=Value)
After: TypeAlias = Annotated[str | None, QueryParameter(pattern="^[A-Za-z0-9_~-]{1,64}$")]
PageEnd: TypeAlias = Annotated[
    str | None, QueryParameter(min_length=1, max_length=MAXIMUM_TEXT_BYTES)
]
Limit: TypeAlias = Annotated[int, QueryParameter(ge=1, le=LISTED_AT_MOST)]


class Span(NamedTuple):
    """The rows of one owner, or of all owners (None), with one status or any status (None)."""

    owner: str | None
    status: str | None

    def __str__(self) -> str:
        return f"{self.owner or ''} {self.status or ''}"


async def page_of_spans(
    service: Service,
    kind: type[T],
    spans: Sequence[Span],
    *,
    sees: Callable[[T], bool],
    after: str | None,
    limit: int,
) -> tuple[list[T], str | None]:
    """Return rows of the spans in order, and the position after them, or None at the end.

    Raises:
        InvalidQuestion: `after` is no position in this list.
    """
    number, last = (0, "") if after is None else _read_end(service, spans, after)
    found = list[T]()
    for read, span in enumerate(spans[number:], start=1):
        whose = span.owner or ""
        rows, tail = await page_of(
            service,
            kind,
            owner=span.owner,
            sees=sees,
            status=span.status,
            after=last.removeprefix(whose) or None,
            limit=limit - len(found),
        )
        found += rows
        following = span if tail is not None else next(iter(spans[number + read :]), None)
        last = "" if tail is None else whose + tail
        if following is None:
            return found, None
        if tail is not None or len(found) == limit or read == _SPANS_READ_AT_MOST:
            end = service.links.page(last=last, rest=str(following), now=service.clock())
            return found, end
    return found, None


def _read_end(service: Service, spans: Sequence[Span], after: str) -> tuple[int, str]:
    """Return the index of the span to continue with, and the id of the last row read in it."""
    try:
        end = service.links.read(after, purpose=Purpose.PAGE, now=service.clock())
        return [*map(str, spans)].index(end.rest), end.id
    except (InvalidToken, ValueError):
        raise InvalidQuestion(
            "`after` is not a valid position in this list. Send the `after` of the previous page, "
            "within a day, with the same key and the same other parameters. To start from the "
            "beginning, leave `after` out."
        ) from None


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
    """Return the rows that `sees` accepts and the position after them, or None at the end.

    The position is an id, without the owner's prefix if the list has a single owner.
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
