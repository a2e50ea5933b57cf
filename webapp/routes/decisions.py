"""The inbox: questions that wait for an approver's decision, and the person's own approvals.

Risks: an unauthorized person answers. The viewer is checked against the settings at each request,
and again with the answer. A viewer sees no inbox under another person's name, and the questions in
that inbox count as not found. A GET changes nothing.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

from litestar import Response, post, route
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from msgspec.json import encode

from flows.elicitation.states import Elicitation, Status
from flows.elicitation.voting import may_have_approved
from flows.errors import InvalidAnswer, NotAllowed, NotPossible
from flows.kinds.form import asker_of, voting_of
from webapp.http.parts import READ
from webapp.identity.approvers import Deciding
from webapp.identity.identity import Viewer
from webapp.kinds.decision import PendingDecision, comment_in
from webapp.kinds.page_kind import is_before_tool, terms_in
from webapp.pages.builder_forms import (
    arguments_shown,
    decision_of,
    question_of,
    server_of,
)
from webapp.pages.views_forms import (
    Decide,
    Delegation,
    InboxEntry,
    InboxList,
    InboxPage,
    StandingYes,
)
from webapp.pages.views_openers import SecondLook
from webapp.records.ids import tail_of
from webapp.records.values import Approval
from webapp.routes.answers import see_other
from webapp.routes.openers import sign_in_button
from webapp.routes.own_pages import known_viewer, listed, own_page, paged, updates, viewer_fields
from webapp.routes.page_request import CurrentPage, PageRequest

HERE: Final = "/inbox"
ID_CHARACTERS: Final = 64
_LISTED_BYTES: Final = 400  # arguments up to this size are shown in the list


@route(HERE, http_method=READ)
async def inbox(page: CurrentPage) -> Response[Any]:
    """Show the questions that wait for the viewer.

    The query parameter `of` selects one of the viewer's names and its inbox. `after` is the id of
    the last entry that was shown; the inbox then shows older entries. `page` is a number, and
    selects a part of the viewer's own approvals.
    """
    viewer = await known_viewer(page, of="inbox")
    decisions = page.service.kinds.decisions
    person = decisions.approvers.deciding(viewer)
    is_stale = person is not None and decisions.approvers.is_too_long_ago(person)
    names = () if person is None else decisions.approvers.names_of(person)
    only = page.last("of")
    facts = viewer_fields(page, viewer, back=HERE)
    if is_stale:
        facts["sign_in"] = sign_in_button(page, back=HERE)
    standing = [] if only else await page.service.kinds.gates.approvals.all(owner=viewer.owner)
    part, paging = paged(page, standing, back=HERE)
    view = InboxPage(
        **facts,
        lists=tuple(
            [
                await _list(page, person, name)
                for name in names
                if person is not None and only in ("", name)
            ]
        ),
        approvals=tuple(map(_standing, part)),
        paging=paging,
        hidden="stale" if is_stale else "unpaired" if person is None else None,
    )
    if not is_stale:
        view = replace(view, updates=updates(page, "inbox", await listed(page, viewer, "inbox")))
    return await own_page(page, view)


@route(HERE + "/{approver:str}/{id:str}", http_method=READ)
async def look(page: CurrentPage, approver: FromPath[str], id: FromPath[str]) -> Response[Any]:
    """Show one question in full."""
    person, waiting = await _person_and_question(page, approver, id)
    return await _shown(page, person, waiting)


@post(HERE + "/{approver:str}/{id:str}/approve", status_code=HTTPStatus.SEE_OTHER)
async def approve_request(
    page: CurrentPage, approver: FromPath[str], id: FromPath[str]
) -> Response[Any]:
    """Approve a request. The page says so if the request has already ended otherwise."""
    return await _decide(page, approver, id, accepts=True)


@post(HERE + "/{approver:str}/{id:str}/decline", status_code=HTTPStatus.SEE_OTHER)
async def decline_request(
    page: CurrentPage, approver: FromPath[str], id: FromPath[str]
) -> Response[Any]:
    """Decline a request, with an optional reason."""
    return await _decide(page, approver, id, accepts=False)


@route("/approvals/{id:str}/revoke", http_method=READ)
async def look_before_revoke(page: CurrentPage, id: FromPath[str]) -> Response[Any]:
    """Show what revoking an approval changes."""
    viewer = await known_viewer(page, of="inbox")
    found = await _approval(page, viewer, id)
    one = _standing(found)
    view = SecondLook(
        server=page.answers.server,
        for_user=viewer.is_user,
        act="revoke",
        what=one.tool,
        tool_title=one.tool_title,
        about=one.about,
        action=one.action,
        csrf=page.csrf(found.id),
        back=HERE,
    )
    return page.answers.page(view, cookies=page.new_cookies)


@post("/approvals/{id:str}/revoke", status_code=HTTPStatus.SEE_OTHER)
async def revoke(page: CurrentPage, id: FromPath[str]) -> Response[Any]:
    """Revoke an approval, so that the person is asked again from now on."""
    viewer = await known_viewer(page, of="inbox")
    found = await _approval(page, viewer, id)
    page.must_be_form_about(found.id)
    await page.service.kinds.gates.approvals.revoke(found.id, owner=viewer.owner)
    return see_other(HERE)


async def _approval(page: PageRequest, viewer: Viewer, id: str) -> Approval:
    owner = viewer.owner
    found = await page.service.elicitations.read(Approval, owner=owner, id=owner + id)
    if found is None:
        raise NotFoundException
    return found


async def _decide(page: PageRequest, approver: str, id: str, *, accepts: bool) -> Response[Any]:
    person, waiting = await _person_and_question(page, approver, id)
    page.must_be_form_about(_subject(waiting))
    reason = "".join(page.form.get("reason", []))
    voting = voting_of(waiting.asked)
    invalid = HTTPStatus.UNPROCESSABLE_ENTITY
    if voting is not None and voting.comment == "required" and comment_in(reason) is None:
        return await _shown(page, person, waiting, status=invalid, needs_comment=True)
    try:
        ended = await page.service.kinds.decisions.decide(
            waiting, person, accepts=accepts, reason=reason
        )
    except InvalidAnswer:
        comment, declining = (reason, "") if accepts else ("", reason)
        return await _shown(
            page, person, waiting, status=invalid, typed_comment=comment, typed_reason=declining
        )
    except NotAllowed:  # the page says why
        return await _shown(page, person, waiting, status=HTTPStatus.FORBIDDEN)
    if page.service.kinds.decisions.is_same_answer(ended, person, accepts=accepts):
        return see_other(_url(waiting))
    ended_as = PendingDecision(id=waiting.id, approver=waiting.approver, asked=ended)
    return await _shown(page, person, ended_as, status=HTTPStatus.CONFLICT, came_late=True)


@post(HERE + "/{approver:str}/{id:str}/delegate", status_code=HTTPStatus.SEE_OTHER)
async def delegate_from_page(
    page: CurrentPage, approver: FromPath[str], id: FromPath[str]
) -> Response[Any]:
    """Hand a request to another approver."""
    person, waiting = await _person_and_question(page, approver, id)
    page.must_be_form_about(_subject(waiting))
    try:
        await page.service.kinds.decisions.delegate(
            waiting, person, "".join(page.form.get("to", []))
        )
    except NotAllowed:
        return await _shown(page, person, waiting, status=HTTPStatus.FORBIDDEN)
    except NotPossible:
        return await _shown(page, person, waiting, status=HTTPStatus.CONFLICT, came_late=True)
    return see_other(_url(waiting))


async def _person_and_question(
    page: PageRequest, approver: str, id: str
) -> tuple[Deciding, PendingDecision]:
    """Return the viewer as an approver, and the question that they open.

    Raises:
        NotShown: The viewer has to sign in.
        NotFoundException: The viewer may not decide this question.
    """
    viewer, decisions = await known_viewer(page, of="inbox"), page.service.kinds.decisions
    person = decisions.approvers.deciding(viewer)
    if person is not None and decisions.approvers.is_too_long_ago(person):
        await known_viewer(page, of="inbox", is_too_long_ago=True)
    if person is None or approver not in decisions.approvers.names_of(person):
        raise NotFoundException
    waiting = await decisions.read(approver, id) if len(id) <= ID_CHARACTERS else None
    if waiting is None:
        raise NotFoundException
    return person, waiting


async def _shown(
    page: PageRequest,
    person: Deciding,
    waiting: PendingDecision,
    *,
    status: int = HTTPStatus.OK,
    came_late: bool = False,
    needs_comment: bool = False,
    typed_comment: str = "",
    typed_reason: str = "",
) -> Response[Any]:
    asked, voting = waiting.asked, voting_of(waiting.asked)
    colleagues = page.service.kinds.decisions.approvers.colleagues(person, asked)
    view = Decide(
        server=server_of(asked),
        approver=waiting.approver,
        entry=_entry(page, person, waiting),
        arguments=arguments_shown(asked),
        approve_action=f"{_url(waiting)}/approve",
        decline_action=f"{_url(waiting)}/decline",
        delegate_action=f"{_url(waiting)}/delegate",
        comment="none" if voting is None else voting.comment,
        comments=() if voting is None else voting.comments,
        colleagues=tuple(sorted(colleagues.values())),
        needs_comment=needs_comment,
        typed_comment=typed_comment,
        typed_reason=typed_reason,
        csrf=page.csrf(_subject(waiting)),
        now=page.now,
        reason=asked.why if asked.status is Status.DECLINED else None,
        came_late=came_late,
    )
    renewed = await page.service.identity.renewed_cookies(page.cookies)
    return page.answers.page(view, status=status, cookies=(*page.new_cookies, *renewed))


async def _list(page: PageRequest, person: Deciding, name: str) -> InboxList:
    """Return the waiting and the decided entries of an inbox, or a further page of one list."""
    decisions = page.service.kinds.decisions
    after, of_decided = page.last("after")[:ID_CHARACTERS] or None, page.last("decided") == "1"
    found: dict[bool, tuple[InboxEntry, ...]] = {True: (), False: ()}
    more: dict[bool, str | None] = {True: None, False: None}
    for is_decided in (False, True) if after is None else (of_decided,):
        listed, last = await decisions.inbox(name, is_decided=is_decided, after=after)
        found[is_decided] = tuple(_entry(page, person, one) for one in listed)
        if last is not None:
            which = {"decided": "1"} if is_decided else {}
            more[is_decided] = f"{HERE}?{urlencode({'of': name, 'after': last, **which})}"
    return InboxList(
        approver=name,
        waiting=found[False],
        decided=found[True],
        more_waiting=more[False],
        more_decided=more[True],
    )


def _entry(page: PageRequest, person: Deciding, waiting: PendingDecision) -> InboxEntry:
    asked = waiting.asked
    by, arguments = asked.decided_by, terms_in(asked).get("arguments")
    voting = voting_of(asked)
    votes = () if voting is None else voting.votes
    is_short = isinstance(arguments, Mapping) and len(encode(arguments)) <= _LISTED_BYTES
    return InboxEntry(
        url=_url(waiting),
        message=asked.request.message,
        question=question_of(asked),
        arguments=arguments_shown(asked, in_a_line=True) if is_short else (),
        has_more=bool(arguments) and not is_short,
        tool=asked.request.tool,
        asker=asker_of(asked),
        client=asked.request.client,
        client_id=asked.request.client_id,
        client_title=asked.request.client_title,
        described=asked.request.described,
        is_gate=is_before_tool(asked),
        asked_at=asked.created_at,
        expires_at=asked.expires_at,
        decision=decision_of(asked, now=page.now),
        decided_by=None if by is None else by.label,
        decided_at=_ended_at(asked, now=page.now),
        is_own=page.service.kinds.decisions.approvers.is_asker(person, asked),
        needs=1 if voting is None else voting.needs,
        approved_by=tuple(vote.label for vote in votes if vote.to is None),
        delegated=tuple(Delegation(by=v.label, to=v.to_label or "") for v in votes if v.to),
        has_approved=voting is not None and voting.has_approved(person.owner),
        may_have_approved=voting is not None
        and may_have_approved(voting, known_by=person.known_by.value, issuer=person.issuer),
        has_delegated=voting is not None and voting.has_delegated(person.owner),
    )


def _standing(approval: Approval) -> StandingYes:
    return StandingYes(
        tool=approval.tool,
        tool_title=approval.tool_title,
        about=approval.about,
        until=approval.until,
        action=f"/approvals/{tail_of(approval)}/revoke",
    )


def _ended_at(asked: Elicitation, *, now: datetime) -> datetime | None:
    return min(asked.settled_at, now) if asked.settled_at is not None else None


def _url(waiting: PendingDecision) -> str:
    return f"{HERE}/{waiting.approver}/{quote(waiting.id, safe='')}"


def _subject(waiting: PendingDecision) -> str:
    return f"decision of {waiting.approver} on {waiting.id}"
