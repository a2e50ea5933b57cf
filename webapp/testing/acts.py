"""The actions of a test's person: on our pages, at a provider, or in the client's form.

Each action submits the real forms of the pages. If a page lacks the form that the action needs, the
action raises an AssertionError that quotes the page.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import urljoin

import httpx
from mcp_types import ElicitResult

from flows.elicitation.states import Elicitation, Json
from flows.schema.schema import strings_of
from webapp.demo.walker import Page, WalkedForm, walk
from webapp.service import Service

Action: TypeAlias = Literal["accept", "decline", "cancel"]
Do: TypeAlias = Callable[["Errand"], Awaitable[ElicitResult]]
ACCEPT = ElicitResult(action="accept")
CANCEL = ElicitResult(action="cancel")
VALUE = "value"  # the field name of a question without a schema
_STEPS_AT_MOST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An action of the person, for questions whose page is in `pages` (None: any page)."""

    says: str
    do: Do
    pages: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """A question for the person to answer. With `is_form`, the client shows its own form."""

    service: Service
    browser: httpx.AsyncClient
    asked: Elicitation
    link: str
    is_form: bool

    async def open(self) -> Page:
        return _read(await self.browser.get(self.link))

    async def press(self, form: WalkedForm, **more: object) -> httpx.Response:
        """Submit a form of the page that the link shows."""
        data = {**form.fields, **more}
        return await self.browser.post(urljoin(self.link, form.action), data=data)

    async def go_on(self) -> str:
        """Press Continue and return the URL of the redirect."""
        form = _form(await self.open(), lambda one: not _is_beside(one))
        return _location(await self.press(form))

    async def follow(self, reply: httpx.Response) -> None:
        """Follow redirects to the last page."""
        for _ in range(_STEPS_AT_MOST):
            if not reply.has_redirect_location:
                break
            reply = await self.browser.get(urljoin(str(reply.url), reply.headers["location"]))
        _read(reply)


async def answer(errand: Errand, content: Mapping[str, Json]) -> ElicitResult:
    """Fill in a form on our page or in the client. Without fields, accept the question."""
    if errand.is_form:
        return ElicitResult(action="accept", content=cast("Any", dict(content)))
    kind = errand.service.kinds.on_page(errand.asked.kind)
    if kind is None:
        raise AssertionError(f"A question of kind {errand.asked.kind} has no form to fill in.")
    schema = kind.schema(errand.asked)
    if others := content.keys() - {field.name for field in schema.fields}:
        raise AssertionError(f"The form has no field {', '.join(sorted(others))}.")
    fields = strings_of(schema, content)
    form = _form(await errand.open(), lambda one: not one.action.endswith("/decline"))
    reply = await errand.press(form, **fields)
    if not reply.has_redirect_location:
        raise AssertionError(f"The page did not accept the form: {_text(reply)}")
    await errand.follow(reply)
    return ACCEPT


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
    if others := fields.keys() - {field.name for field in schema.fields}:
        raise AssertionError(f"The form has no field {', '.join(sorted(others))}.")
    typed, page = strings_of(schema, fields), await errand.open()
    form = _form(page, lambda one: not _is_beside(one))
    if any("/allow" in one.action for one in page.forms):  # "use another account"
        form = _form(_read(await errand.press(form)), lambda one: not _is_beside(one))
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


async def visit_page(errand: Errand, fields: Mapping[str, str], origins: list[str]) -> ElicitResult:
    """Submit an author's own pages until the last one, with `fields` as the form values."""
    await walk(errand.browser, errand.link, answers=fields, also=origins, say=_hushed)
    return ACCEPT


def _hushed(_: str) -> None:
    pass


def _is_beside(form: WalkedForm) -> bool:
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
    return f"{Page(reply.text).heading or reply.text[:200]} ({reply.status_code})"
