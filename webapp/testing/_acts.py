"""The actions of a test's person: on our pages, at a provider, or in the client's form.

Each action submits the real forms of the pages. If a page lacks the form that the action needs, the
action raises an AssertionError that quotes the page.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import quote, urljoin

import httpx
from mcp_types import ElicitResult

from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.voting import Voting
from flows.kinds.form import voting_of
from flows.schema.schema import Schema, check, strings_of, without_blanks
from webapp.demo.walker import Page, WalkedForm, walk
from webapp.sandbox.authorization.granted import PEOPLE, person_of
from webapp.service import Service
from webapp.testing._application import URL, TestedApplication
from webapp.testing.received import ReceivedQuestion

Action: TypeAlias = Literal["accept", "decline", "cancel"]
Do: TypeAlias = Callable[["Errand"], Awaitable[ElicitResult]]
ACCEPT = ElicitResult(action="accept")
AGAIN = ElicitResult(action="accept")  # the question is still open, and the next action follows
CANCEL = ElicitResult(action="cancel")
VALUE = "value"  # the field name of a question without a schema
DECISION = "decision"  # the page of a question that approvers decide
_STEPS_AT_MOST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An action of the person, for questions whose page is in `pages` (None: any page).

    With `leaves_open`, the next action answers the question.
    """

    says: str
    do: Do
    pages: frozenset[str] | None = None
    leaves_open: bool = False


class Pause(StrEnum):
    """A planned event before the person answers a question. Errors show its value."""

    LEFT_OPEN = "leave the question open"
    UNSEEN = "see nothing in the client"
    DISCONNECTED = "disconnect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """A question for the person to answer. With `is_form`, the client shows its own form."""

    app: TestedApplication
    browser: httpx.AsyncClient
    asked: Elicitation
    link: str
    is_form: bool

    @property
    def service(self) -> Service:
        return self.app.service

    @property
    def voting(self) -> Voting:
        """The votes on a question that approvers decide."""
        voting = voting_of(self.asked)
        assert voting is not None
        return voting

    @property
    def asks(self) -> ReceivedQuestion:
        return self.app.asked_of[self.asked.id]

    async def open(self) -> Page:
        return _read(await self.browser.get(self.link))

    async def press(self, form: WalkedForm, **more: object) -> httpx.Response:
        """Submit a form of the page that the link shows."""
        data = {**form.fields, **more}
        return await self.browser.post(urljoin(self.link, form.action), data=data)

    async def go_on(self) -> str:
        """Press Continue and return the URL of the redirect."""
        form = _form(await self.open(), lambda one: not _is_other_button(one))
        return _location(await self.press(form))

    async def follow(self, reply: httpx.Response) -> None:
        """Follow redirects to the last page."""
        for _ in range(_STEPS_AT_MOST):
            if not reply.has_redirect_location:
                break
            reply = await self.browser.get(urljoin(str(reply.url), reply.headers["location"]))
        _read(reply)


async def answer(
    errand: Errand, content: Mapping[str, Json], *, refused: list[Mapping[str, str]] | None = None
) -> ElicitResult:
    """Fill in a form on our page or in the client. Without fields, accept the question.

    With `refused`, the form has to refuse the answer. Its errors by field are added to the list.
    """
    kind = errand.service.kinds.on_page(errand.asked.kind)
    if kind is None:
        raise AssertionError(f"A question of kind {errand.asked.kind} has no form to fill in.")
    schema = kind.schema(errand.asked)
    fields = _written(schema, content)
    if errand.is_form or refused is not None:
        given = without_blanks(schema, dict(content))
        faults = check(schema, given) or await errand.service.kinds.rules.faults(
            errand.asked, given
        )
        if refused is not None and not faults:
            raise AssertionError(
                "The form accepts this answer of answers_wrongly(...). Plan fills(...) or "
                "types(...) instead, or change the answer."
            )
        if refused is not None:
            refused.append({fault.path: fault.message for fault in faults})
        elif faults:
            messages = [f"{one.path}: {one.message}" if one.path else one.message for one in faults]
            raise _not_accepted("form", " ".join(messages))
    if errand.is_form:
        return ElicitResult(action="accept", content=cast("Any", dict(content)))
    form = _form(await errand.open(), lambda one: not one.action.endswith("/decline"))
    reply = await errand.press(form, **fields)
    if refused is not None and not reply.has_redirect_location:
        return AGAIN
    if not reply.has_redirect_location:
        raise _not_accepted("page", _text(reply))
    await errand.follow(reply)
    return ACCEPT


def _written(schema: Schema[Any], content: Mapping[str, Json]) -> dict[str, list[str]]:
    """Return the strings that a person types. Raise AssertionError for an unknown field."""
    names = [field.name for field in schema.fields]
    if others := content.keys() - set(names):
        has = ", ".join(names) or "no fields"
        raise AssertionError(f"The form has no field {', '.join(sorted(others))}: it has {has}.")
    return strings_of(schema, content)


def _not_accepted(what: str, says: str) -> AssertionError:
    return AssertionError(
        f"The {what} did not accept the answer: {says} If the test is about this, plan "
        "answers_wrongly(...), and then the right answer."
    )


async def decline(errand: Errand) -> ElicitResult:
    if errand.is_form:
        return ElicitResult(action="decline")
    form = _form(await errand.open(), lambda one: one.action.endswith("/decline"))
    await errand.follow(await errand.press(form))
    return ACCEPT


async def dismiss(_: Errand) -> ElicitResult:
    return CANCEL


async def connect(errand: Errand, *, account: str | None, decision: str) -> ElicitResult:
    """Connect an account at the provider as `account`, or allow the connected account."""
    if account is not None and person_of(account) is None:
        people = " and ".join(person.login for person in PEOPLE)
        raise AssertionError(f"The sandbox has no person {account!r}. It has {people}.")
    page = await errand.open()
    allow = next((one for one in page.forms if "/allow" in one.action), None)
    if allow is not None and account is None and decision == "approve":
        await errand.follow(await errand.press(allow))
        return ACCEPT
    at = await errand.go_on()
    form = _form(_read(await errand.browser.get(at)), lambda one: "decision" in one.fields)
    chosen = {"decision": decision} | ({} if account is None else {"person": account})
    data = {**form.fields, **chosen}
    await errand.follow(await errand.browser.post(urljoin(at, form.action), data=data))
    return ACCEPT


async def type_key(errand: Errand, fields: Mapping[str, str]) -> ElicitResult:
    """Type the key of an account on our page. The provider tests it."""
    accounts = errand.service.kinds.accounts
    client = accounts.client_for(errand.asked)
    if client is None or client.provider.key is None:
        raise AssertionError(f"{accounts.label(errand.asked)} has no API keys: plan connects().")
    schema = accounts.api_keys.schema(client, accounts.terms(errand.asked))
    typed, page = _written(schema, fields), await errand.open()
    form = _form(page, lambda one: not _is_other_button(one))
    if any("/allow" in one.action for one in page.forms):  # press "use another account" first
        form = _form(_read(await errand.press(form)), lambda one: not _is_other_button(one))
    reply = await errand.press(form, **typed)
    if not reply.has_redirect_location:
        raise AssertionError(f"The page did not accept the key: {_text(reply)}")
    await errand.follow(reply)
    return ACCEPT


async def pay(
    errand: Errand, *, button: str | None = None, comes_back: bool = True
) -> ElicitResult:
    """Press a button of the checkout, by default the first one."""
    at = await errand.go_on()
    form = _form(
        _read(await errand.browser.get(at)),
        lambda one: button is None or one.action.endswith(f"/{button}"),
    )
    reply = await errand.browser.post(urljoin(at, form.action), data=form.fields)
    if comes_back:
        await errand.follow(reply)
    return ACCEPT


async def visit_page(
    errand: Errand, fields: Mapping[str, str], places: Collection[str]
) -> ElicitResult:
    """Go through the author's own pages to the last one, and fill in their forms with `fields`."""
    origins = [*places, *errand.asked.request.origins]
    await walk(errand.browser, errand.link, answers=fields, also=origins, say=lambda _: None)
    return ACCEPT


async def expire(errand: Errand) -> ElicitResult:
    """Move the clock past the question's expiry, and end the question as expired."""
    remaining = errand.asked.expires_at - errand.app.clock()
    errand.app.clock.tick(seconds=max(remaining, timedelta()).total_seconds() + 1)
    await errand.service.elicitations.end(errand.asked, Status.EXPIRED)
    return CANCEL if errand.is_form else ACCEPT


async def decide(errand: Errand, *, by: Sequence[str], approves: bool, words: str) -> ElicitResult:
    """Approve or decline a request on the inbox pages, each person in their own browser.

    `by` are subjects. By default, people of the approver's table decide: as many as the request
    needs to be approved, or one to decline.
    """
    voting = errand.voting
    missing = voting.needs - len(voting.approvals) if approves else 1
    people = tuple(by) or _approvers(errand, voting)[:missing]
    if not people:
        raise AssertionError(
            f"Nobody in [approvers.{voting.approver}] is left to decide {errand.asks.message!r}."
        )
    for person in people:
        async with errand.app.browser() as browser:
            await _decide_as(person, browser, errand, approves=approves, words=words)
    return ACCEPT


def _approvers(errand: Errand, voting: Voting) -> Sequence[str | None]:
    """Return the people who can decide now. None is the user of this machine."""
    tables = errand.app.settings.identity.approvers
    names = voting.names(errand.app.clock())
    found = list[str | None]()
    for table in sorted((one for one in tables if one.name in names), key=_by_name(names)):
        # For a table that names claims, invent people who have these claims.
        made_up = [f"{table.name}-{n + 1}" for n in range(voting.needs)] if table.pairs else []
        found += [*sorted(table.subjects), *made_up, *([None] if table.is_local else [])]
    gone = {vote.owner for vote in voting.votes} | {errand.asked.owner}
    if errand.app.settings.identity.askers_decide:
        gone -= {errand.asked.owner}
    return [one for one in found if errand.app.owner_of(one) not in gone]


def _by_name(names: Sequence[str]) -> Callable[[Any], int]:
    return lambda table: names.index(table.name)


async def _decide_as(
    subject: str | None,
    browser: httpx.AsyncClient,
    errand: Errand,
    *,
    approves: bool,
    words: str,
) -> None:
    address, page = await _request_of(subject, browser, errand)
    button, voting = "approve" if approves else "decline", voting_of(errand.asked)
    form = _form(page, lambda one: one.action.endswith(f"/{button}"))
    pressed = await browser.post(
        urljoin(address, form.action), data={**form.fields, "reason": words}
    )
    if not pressed.has_redirect_location:
        is_commented = voting is None or voting.comment != "required" or bool(words.strip())
        hint = "" if is_commented else f" Plan {button}s with a comment."
        raise AssertionError(f"The inbox did not accept the decision: {_text(pressed)}.{hint}")
    _read(await browser.get(urljoin(address, pressed.headers["location"])))


async def delegate(errand: Errand, *, by: str | None, to: str) -> ElicitResult:
    """Hand a request to the approver `to`, on the inbox page of another approver."""
    voting = errand.voting
    people = [by] if by else [one for one in _approvers(errand, voting) if one != to][:1]
    for person in people:
        async with errand.app.browser() as browser:
            address, page = await _request_of(person, browser, errand)
            form = next((one for one in page.forms if one.action.endswith("/delegate")), None)
            if form is None:
                raise AssertionError(
                    f"{person} cannot hand over {errand.asks.message!r}. Write `delegate`: True in "
                    f"the table {voting.approver!r} of approvers. A person who has approved or "
                    "handed over the request cannot do so."
                )
            data = {**form.fields, "to": to}
            reply = await browser.post(urljoin(address, form.action), data=data)
            if not reply.has_redirect_location:
                raise AssertionError(
                    f"The inbox did not accept that {person} hands the request to {to}: "
                    f"{_text(reply)}. Choose a person who is listed in the table "
                    f"{voting.approver!r} of approvers and has not decided yet."
                )
    return AGAIN


async def _request_of(
    subject: str | None, browser: httpx.AsyncClient, errand: Errand
) -> tuple[str, Page]:
    """Return the page of a request in the inbox of this person, and its address."""
    app, voting = errand.app, errand.voting
    if subject is not None:
        tables = app.settings.identity.approvers
        is_listed = any(subject in one.subjects for one in tables)
        pairs = [
            pair for one in tables if one.name in voting.names(app.clock()) for pair in one.pairs
        ]
        await app.sign_in(browser, subject, claims=() if is_listed else pairs)
    for name in voting.names(app.clock()):
        id = await _inbox_id(errand, name)
        address = f"{URL}/inbox/{quote(name)}/{quote(id, safe='')}"
        reply = await browser.get(address)
        if reply.status_code != 404 and id:
            break
    else:
        raise AssertionError(
            f"{subject or 'The user of this machine'} cannot decide {errand.asks.message!r}: the "
            f"request waits for {' or '.join(voting.names(app.clock()))}. Add the subject to that "
            "table of approvers."
        )
    return address, _read(reply)


async def _inbox_id(errand: Errand, approver: str) -> str:
    """Return the question's id in this inbox, or "" if the inbox does not have it."""
    after: str | None = None
    while True:
        waiting, after = await errand.service.kinds.decisions.inbox(approver, after=after)
        for one in waiting:
            if one.asked.id == errand.asked.id:
                return one.id
        if after is None:
            return ""


def _is_other_button(form: WalkedForm) -> bool:
    """Return True if the form belongs to a button other than Continue."""
    return "/allow" in form.action or form.action.endswith("/decline")


def _form(page: Page, fits: Callable[[WalkedForm], bool]) -> WalkedForm:
    form = next((one for one in page.forms if fits(one)), None)
    if form is None:
        raise AssertionError(f"The page {page.heading!r} has no form for the planned action.")
    return form


def _read(reply: httpx.Response) -> Page:
    if reply.is_error:
        raise AssertionError(f"The page answered with an error: {_text(reply)}")
    return Page(reply.text)


def _location(reply: httpx.Response) -> str:
    if not reply.has_redirect_location:
        raise AssertionError(f"The Continue button did not redirect: {_text(reply)}")
    return urljoin(str(reply.url), reply.headers["location"])


def _text(reply: httpx.Response) -> str:
    page = Page(reply.text)
    faults = f": {'; '.join(page.faults)}" if page.faults else ""
    return f"{page.heading or reply.text[:200]} ({reply.status_code}){faults}"
