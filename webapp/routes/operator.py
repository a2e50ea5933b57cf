"""The lists for operators, with filters and as CSV, and the search for any id.

Every page first checks the viewer with `known_operator`. The lists show what the commands and
the HTTP API show to operators, with the same rows (`webapp.operations`).

Risks: a spreadsheet program runs a cell of the CSV file as a formula. `csv_of` prevents that.
"""

from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from litestar import Response, post, route
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from flows.crypto.tokens import MAXIMUM_TEXT_BYTES
from flows.elicitation.states import Elicitation
from webapp.command import CommandRefused
from webapp.http.browser import page_headers
from webapp.http.parts import READ, Reply
from webapp.operations.catalog import LISTS, Catalogued, csv_of
from webapp.operations.history import ERROR_NUMBER, LINK, found_by
from webapp.operations.rows import OWNER_CHARACTERS, is_within, listed, matches, moment_of, text_of
from webapp.pages.views_openers import Paging
from webapp.pages.views_operator import Fact, FilterField, OperatorList, OperatorRecord, RecordLine
from webapp.records.ids import OWNER_TAG_CHARACTERS
from webapp.routes.answers import see_other
from webapp.routes.operator_access import (
    HERE,
    SEARCH,
    about_operator,
    known_operator,
    operator_page,
)
from webapp.routes.operator_records import (
    LINKS_AT_MOST,
    facts,
    label_of,
    link,
    record_of,
    url_of,
)
from webapp.routes.own_pages import PAGE_NUMBER, PAGE_OF
from webapp.routes.page_request import CurrentPage, PageRequest

_SOUGHT_AT_MOST: Final = 500
_VALUE_AT_MOST: Final = 200
_OPEN: Final = ("pending", "opened", "exchanging")


class _Entry(NamedTuple):
    record: Any
    row: Any


class _Wanted(NamedTuple):
    """The filters in a URL: `given` has their texts, and the other fields the parsed values."""

    given: Mapping[str, str]
    owner: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@route(HERE + "/search", http_method=READ)
async def operator_search(page: CurrentPage) -> Response[Any]:
    """Find a record by any id and redirect to its page, or show the log lines of an error."""
    operator = await known_operator(page)
    sought = page.last("q")[:_SOUGHT_AT_MOST].strip().removeprefix("id:")
    if not sought or LINK.search(sought):  # a link is a secret and must not be in a URL
        return see_other(f"{HERE}/questions")
    if (owner := await _person(page, sought)) is not None:
        return see_other(f"{HERE}/questions?{urlencode({'person': owner})}")
    lines = page.service.recent_lines.about([sought])
    if ERROR_NUMBER.fullmatch(sought) and lines:
        links = [await _link_of(page, line.id) for line in lines if line.id is not None]
        view = OperatorRecord(
            **about_operator(page, operator, sought=sought),
            title=f"Error {sought}",
            links=tuple(dict.fromkeys(link for link in links if link is not None)),
            log_lines=tuple(line.text for line in lines),
        )
        return operator_page(page, view)
    try:
        found = await record_of(page, sought)
        meant = await found_by(page.service, sought) if found is None else [found]
    except CommandRefused as refused:
        view = OperatorRecord(
            **about_operator(page, operator, sought=sought),
            title="Nothing was found",
            says=str(refused),
            log_lines=tuple(line.text for line in lines),
        )
        return operator_page(page, view, status=HTTPStatus.NOT_FOUND)
    owners = {each.owner for each in meant}
    if [owner[:OWNER_CHARACTERS] for owner in owners] == [sought]:  # as shown in lists
        return see_other(f"{HERE}/questions?{urlencode({'person': owners.pop()})}")
    if len(meant) == 1:
        return see_other(url_of(meant[0]))
    rest = f"Here are {LINKS_AT_MOST} of them: search for a longer part of the id."
    view = OperatorRecord(
        **about_operator(page, operator, sought=sought),
        title=f"{len(meant)} records",
        says=rest if len(meant) > LINKS_AT_MOST else None,
        links=tuple(link(each) for each in meant[:LINKS_AT_MOST]),
        shows_log=False,
    )
    return operator_page(page, view)


@post(HERE + "/search", status_code=HTTPStatus.SEE_OTHER)
async def send_search(page: CurrentPage) -> Response[Any]:
    """Accept the search form or the filters of a list, and redirect to the address with the values.

    If the text is the link of a question, redirect to the question: the link must not be in a URL.
    """
    operator = await known_operator(page)
    page.must_be_form_about(SEARCH)
    if name := "".join(page.form.get("list", [])):
        given = {field: "".join(page.form.get(field, [])) for field in _fields(_list(name))}
        return see_other(_address(name, given))
    sought = "".join(page.form.get("q", []))[:MAXIMUM_TEXT_BYTES].strip()
    if not LINK.search(sought):
        return see_other(f"{HERE}/search?{urlencode({'q': sought[:_SOUGHT_AT_MOST]})}")
    try:
        (found,) = await found_by(page.service, sought)
    except CommandRefused as refused:
        facts = about_operator(page, operator)
        view = OperatorRecord(
            **facts, title="Nothing was found", says=str(refused), shows_log=False
        )
        return operator_page(page, view, status=HTTPStatus.NOT_FOUND)
    return see_other(url_of(found))


@route(HERE + "/csv/{name:str}", http_method=READ)
async def operator_csv(page: CurrentPage, name: FromPath[str]) -> Response[Any]:
    """Export a list, with the filters of the address."""
    await known_operator(page)
    catalogued = _list(name)
    try:
        entries, _ = await _entries(page, catalogued, _wanted(page, catalogued))
    except ValueError as error:
        return _plain(str(error), status=HTTPStatus.BAD_REQUEST)
    text = csv_of(catalogued.of, (entry.row for entry in entries))
    return _plain(text, kind="text/csv", name=f"{name}.csv")


@route([HERE, HERE + "/{name:str}"], http_method=READ)
async def operator_list(page: CurrentPage, name: FromPath[str] = "questions") -> Response[Any]:
    """Show a list, the latest first."""
    operator = await known_operator(page)
    catalogued = _list(name)
    entries, notice, wrong = list[_Entry](), None, None
    given = _given(page, catalogued)
    try:
        entries, notice = await _entries(page, catalogued, _wanted(page, catalogued))
    except ValueError as error:
        wrong = str(error)
    last_page = max(1, -(-len(entries) // PAGE_OF))
    text = page.last("page")
    number = min(max(1, int(text)), last_page) if PAGE_NUMBER.fullmatch(text) else 1
    part = entries[(number - 1) * PAGE_OF : number * PAGE_OF]

    def address(number: int, **changes: str) -> str:
        return _address(name, {**given, **changes, "page": str(number) if number > 1 else ""})

    status = given.get("status", "")
    view = OperatorList(
        **about_operator(page, operator, tab=name),
        title=catalogued.label,
        lines=tuple(_line(catalogued, entry) for entry in part),
        quick=tuple(
            (value or "all", address(1, status=value), value == status)
            for value in ("", *catalogued.quick)
        ),
        fields=tuple(
            FilterField(name=field, label=label_of(field), value=given.get(field, ""))
            for field in _fields(catalogued)
        ),
        csv_url=_address(f"csv/{name}", given),
        paging=Paging(
            first=(number - 1) * PAGE_OF + 1 if part else 0,
            last=(number - 1) * PAGE_OF + len(part),
            total=len(entries),
            newer=address(number - 1) if number > 1 else None,
            older=address(number + 1) if number < last_page else None,
        ),
        notice=notice,
        wrong=wrong,
    )
    return operator_page(
        page, view, status=HTTPStatus.OK if wrong is None else HTTPStatus.BAD_REQUEST
    )


def _plain(
    text: str, *, kind: str = "text/plain", name: str | None = None, status: int = HTTPStatus.OK
) -> Response[Any]:
    saved = {} if name is None else {"content-disposition": f'attachment; filename="{name}"'}
    return Reply(
        text.encode("utf-8", "replace"),
        status_code=status,
        media_type=kind,
        headers={**page_headers(), **saved},
    )


def _address(name: str, given: Mapping[str, str]) -> str:
    """Return the address of a list with these filters."""
    query = {field: value[:_VALUE_AT_MOST] for field, value in given.items() if value}
    return f"{HERE}/{name}?{urlencode(query)}" if query else f"{HERE}/{name}"


def _list(name: str) -> Catalogued:
    if name not in LISTS:
        raise NotFoundException
    return LISTS[name]


def _fields(catalogued: Catalogued) -> tuple[str, ...]:
    whose = () if catalogued.owner is not None else ("person",)
    return ("status", *catalogued.filters, *whose, "since", "until")


def _given(page: PageRequest, catalogued: Catalogued) -> dict[str, str]:
    found = {field: page.last(field).strip()[:_VALUE_AT_MOST] for field in _fields(catalogued)}
    return {field: value for field, value in found.items() if value}


def _wanted(page: PageRequest, catalogued: Catalogued) -> _Wanted:
    """Return the filters of the address. Raises ValueError for an invalid time or person."""
    given = _given(page, catalogued)
    person, owner = given.get("person", ""), catalogued.owner
    if "#" in person:
        owner = _tag(page, person)
    elif len(person) == OWNER_TAG_CHARACTERS:
        owner = person
    times = {
        name: moment_of(given[name], now=page.now) for name in ("since", "until") if name in given
    }
    return _Wanted(given, owner, times.get("since"), times.get("until"))


async def _entries(
    page: PageRequest, catalogued: Catalogued, wanted: _Wanted
) -> tuple[list[_Entry], str | None]:
    """Return the entries that match, and a sentence if rows of the list are missing."""
    found = await listed(page.service, catalogued.kind, owner=wanted.owner)
    entries = [_Entry(record, catalogued.row(record, page.now)) for record in found.rows]
    entries = [entry for entry in entries if _is_wanted(entry, catalogued, wanted, page.now)]
    entries.sort(key=lambda entry: getattr(entry.row, catalogued.time), reverse=True)
    notice = None
    if found.more_after is not None:
        notice = "The store has more rows than a page reads: choose a person, or use the command."
    elif found.unreadable:
        notice = f"Rows that cannot be read: {found.unreadable}. Restore an earlier backup."
    return entries, notice


def _is_wanted(entry: _Entry, catalogued: Catalogued, wanted: _Wanted, now: datetime) -> bool:
    row, given = entry.row, wanted.given
    status = text_of(getattr(row, catalogued.status))
    if given.get("status") == "open" and isinstance(entry.record, Elicitation):
        if status not in _OPEN or now >= entry.record.expires_at:
            return False
    elif "status" in given and not matches(status, given["status"]):
        return False
    if wanted.owner is None and not entry.record.owner.startswith(given.get("person", "")):
        return False
    moment = getattr(row, catalogued.time)
    return is_within(moment, since=wanted.since, until=wanted.until) and all(
        matches(text_of(getattr(row, field)), given[field])
        for field in catalogued.filters
        if field in given
    )


def _line(catalogued: Catalogued, entry: _Entry) -> RecordLine:
    row = entry.row
    title = [text_of(getattr(row, field)) for field in catalogued.title]
    return RecordLine(
        title=" · ".join(part for part in title if part),
        status=text_of(getattr(row, catalogued.status)),
        facts=facts(row, catalogued.shows),
        url=url_of(entry.record) if catalogued.has_page else None,
    )


async def _link_of(page: PageRequest, id: str) -> Fact | None:
    found = await record_of(page, id)
    return None if found is None else link(found)


def _tag(page: PageRequest, person: str) -> str:
    issuer, _, subject = person.rpartition("#")
    return page.service.elicitations.owners.tag(issuer=issuer, subject=subject)


async def _person(page: PageRequest, sought: str) -> str | None:
    """Return the owner's tag if the text is a person with records."""
    owner = _tag(page, sought) if "#" in sought and "/e/" not in sought else sought
    if len(owner) != OWNER_TAG_CHARACTERS:
        return None
    return owner if await page.service.elicitations.owners.has(owner) else None
