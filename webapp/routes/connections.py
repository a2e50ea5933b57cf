"""The pages of connected accounts: what a person has connected, and how to change or end it.

Risks: a request with the id of somebody else's account. So every look-up uses the viewer and the
id, addresses contain no owner, and another person's account counts as not found. A GET changes
nothing.
"""

import logging
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from itertools import groupby
from typing import Any, Final
from urllib.parse import quote

from litestar import Response, post, route
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from msgspec import convert, to_builtins
from msgspec.structs import replace

from flows.elicitation import states
from flows.elicitation.states import Asked, Elicitation, Status
from flows.errors import Failed
from flows.oauth.authorization_code import AccountTerms
from flows.oauth.connection import Connection
from flows.oauth.provider import SCOPE
from flows.question import digest_of
from flows.requests import AccountRequest, ApiKeyRequest
from webapp.elicitations.question_kind import AskedBy
from webapp.http.parts import READ
from webapp.identity.identity import Viewer
from webapp.oauth.clients import is_at_sandbox
from webapp.pages.builder import scopes_shown
from webapp.pages.views import AccountName, ProviderTrouble, ToolName, View
from webapp.pages.views_openers import SecondLook
from webapp.pages.views_own import (
    AccountGroup,
    AccountStanding,
    Assistant,
    Connected,
    ConnectionsPage,
    Disconnected,
    Sharing,
    TeamUse,
)
from webapp.records.ids import OWNER_TAG_CHARACTERS
from webapp.routes.answers import see_other
from webapp.routes.own_pages import known_viewer, own_page, paged, place_in, updates, viewer_fields
from webapp.routes.page_request import CurrentPage, PageRequest
from webapp.routes.redirect import trouble_of
from webapp.service import Service

HERE = "/connections"
_SHOWN: Final = ("works", "over")  # the filters of the list, in addition to one for each provider
_NEVER = datetime.min.replace(tzinfo=UTC)
_log = logging.getLogger(__name__)


@route(HERE, http_method=READ)
async def connections(page: CurrentPage) -> Response[Any]:
    """Show all accounts that the viewer has connected."""
    viewer = await known_viewer(page, of="connections")
    found = await _seen(page, viewer)
    show = page.last("show")
    providers = {f"at-{one.provider}": _label(one, page.service) for one in found}
    providers = providers if len(providers) > 1 else {}
    chosen = [
        one
        for one in found
        if show not in (*_SHOWN, *providers)
        or show in (f"at-{one.provider}", _standing(page, one))
        # The filter `over` also shows accounts whose OAuth client is not set up: they do not work.
        or (show == "over" and _standing(page, one) == "unused")
    ]
    part, paging = paged(page, chosen, back=HERE, shows=("all", *_SHOWN, *providers))
    view = ConnectionsPage(
        **viewer_fields(page, viewer, back=HERE),
        paging=paging,
        providers=providers,
        updates=updates(page, "connections", found),
        groups=tuple(
            AccountGroup(
                name=page.answers.pages.brand.shown(server),
                connected=tuple(_connected(page, one, found, viewer=viewer) for one in group),
            )
            for server, group in groupby(part, key=lambda one: one.server)
        ),
    )
    return await own_page(page, view)


@route(HERE + "/{id:str}/disconnect", http_method=READ)
async def look_before_disconnect(page: CurrentPage, id: FromPath[str]) -> Response[Any]:
    """Show the effects of disconnecting the account, or that it is already disconnected."""
    viewer = await known_viewer(page, of="connections")
    found = await _found(page, id, viewer=viewer)
    view: View
    if found.ended_at is not None:
        provider = page.service.kinds.accounts.connections.provider(found)
        view = Disconnected(
            server=page.answers.server,
            for_user=viewer.is_user,
            provider=_label(found, page.service),
            account=found.label,
            revoked=found.was_revoked,
            manage=None if provider is None else provider.manage_page,
        )
    else:
        view = SecondLook(
            server=page.answers.server,
            for_user=viewer.is_user,
            act="disconnect",
            what=found.label,
            at=_label(found, page.service),
            stopping=tuple(
                ToolName(tool=tool, tool_title=found.titles.get(tool)) for tool in found.tools
            ),
            action=f"{HERE}/{_tail(found)}/disconnect",
            csrf=page.csrf(found.id),
            back=await _place(page, found),
        )
    return page.answers.page(view, cookies=page.new_cookies)


@post(HERE + "/{id:str}/disconnect", status_code=HTTPStatus.SEE_OTHER)
async def disconnect(page: CurrentPage, id: FromPath[str]) -> Response[Any]:
    """Revoke an account's access and delete the account. A second press changes nothing."""
    found = await _pressed(page, id)
    try:
        await page.service.kinds.accounts.keys.disconnect(found.owner, found.id)
    except Failed as error:
        return _trouble(page, found, error, event="account.not_disconnected", again="disconnect")
    return see_other(f"{HERE}/{_tail(found)}/disconnect")


@post(HERE + "/{id:str}/unshare", status_code=HTTPStatus.SEE_OTHER)
async def unshare(page: CurrentPage, id: FromPath[str]) -> Response[Any]:
    """Stop sharing an account with a tool. The tool must then ask for the account again."""
    found = await _pressed(page, id)
    await page.service.kinds.accounts.connections.unshare(found.owner, found.id, page.last("tool"))
    return see_other(await _place(page, found, part="-tools"))


@post(HERE + "/{id:str}/keep", status_code=HTTPStatus.SEE_OTHER)
async def keep(page: CurrentPage, id: FromPath[str]) -> Response[Any]:
    """Save which of the person's assistants may use an account: only the ticked ones, or all."""
    found = await _pressed(page, id)
    clients = None if page.last("all") == "1" else page.form.get("client", [])
    await page.service.kinds.accounts.connections.limit_to(found.owner, found.id, clients)
    return see_other(await _place(page, found, part="-clients"))


@post(HERE + "/{id:str}/switch", status_code=HTTPStatus.SEE_OTHER)
async def switch(page: CurrentPage, id: FromPath[str]) -> Response[Any]:
    """Select this account among the person's accounts at one provider.

    The next call uses this account, even if the person allowed another account for the tool. A tool
    that may not use this account asks first.
    """
    found = await _pressed(page, id)
    await page.service.kinds.accounts.connections.switch(found.owner, found.id)
    return see_other(await _place(page, found))


@post(HERE + "/{id:str}/reconnect", status_code=HTTPStatus.SEE_OTHER)
async def reconnect(page: CurrentPage, id: FromPath[str]) -> Response[Any]:
    """Ask to connect an account again with all its scopes, and redirect to the question."""
    viewer = await known_viewer(page, of="connections")
    found = await _pressed(page, id, viewer=viewer)
    try:
        elicitation = await start_reconnecting(
            page.service, found, owner=viewer.owner, is_for_user=viewer.is_user
        )
    except Failed as error:
        return _trouble(page, found, error, event="account.not_reconnected", again="reconnect")
    if elicitation is None:
        return see_other(await _place(page, found))
    return see_other(page.service.links.of(elicitation, now=page.service.clock()))


async def _pressed(page: PageRequest, id: str, *, viewer: Viewer | None = None) -> Connection:
    """Return the account that a form is about, even if the account's access has ended.

    Raises:
        NotShown: The viewer may not send this form.
        NotFoundException: The account does not exist or is somebody else's.
    """
    found = await _found(page, id, viewer=viewer or await known_viewer(page, of="connections"))
    page.must_be_form_about(found.id)
    return found


async def _found(page: PageRequest, id: str, *, viewer: Viewer) -> Connection:
    """Return an account of the viewer, or one that the viewer connected for a team.

    Raises:
        NotFoundException: The account does not exist or is somebody else's.
    """
    owner, accounts = viewer.owner, page.service.kinds.accounts.connections
    for holder in (owner, *(accounts.holder(owner, team) for team in accounts.teams)):
        found = await page.service.elicitations.read(Connection, owner=holder, id=holder + id)
        if found is not None and found.connected_by in (None, owner):
            return found
    raise NotFoundException


def _trouble(
    page: PageRequest, found: Connection, error: Failed, *, event: str, again: str
) -> Response[Any]:
    """Return the page of a failed request to the provider, and log its error number."""
    error_id = secrets.token_hex(6)
    _log.warning(event, exc_info=error, extra={"id": found.id, "error_id": error_id})
    trouble = ProviderTrouble(
        server=page.answers.server,
        provider=_label(found, page.service),
        error_id=error_id,
        again_action=f"{HERE}/{_tail(found)}/{again}",
        csrf=page.csrf(found.id),
        trouble=trouble_of(error),
    )
    return page.answers.page(trouble, status=HTTPStatus.BAD_GATEWAY)


async def _seen(page: PageRequest, viewer: Viewer) -> Sequence[Connection]:
    accounts = page.service.kinds.accounts.connections
    found = await accounts.seen_by(viewer.owner, viewer.teams, server=page.answers.server)
    return sorted(found, key=lambda one: one.server)


async def _place(page: PageRequest, connection: Connection, *, part: str = "") -> str:
    """Return the address of the account, or of a part of it, in the list of all accounts."""
    found = await _seen(page, await known_viewer(page, of="connections"))
    return place_in([one.id for one in found], connection.id, back=HERE, part=part)


def _standing(page: PageRequest, connection: Connection) -> AccountStanding:
    client = page.service.kinds.accounts.connections.client(connection)
    if client is None and connection.server == page.answers.server:
        return "unused"  # another server's configuration is unknown here
    return "works" if connection.is_usable(now=page.now) else "over"


def _connected(
    page: PageRequest,
    connection: Connection,
    among: Sequence[Connection],
    *,
    viewer: Viewer,
) -> Connected:
    accounts = page.service.kinds.accounts.connections
    client, provider = accounts.client(connection), accounts.provider(connection)
    standing = _standing(page, connection)
    alike = [
        one
        for one in among
        if (one.owner, one.lookup_key) == (connection.owner, connection.lookup_key)
    ]
    can_switch = standing == "works" and not connection.is_active
    has_scopes = provider is None or provider.has_scopes
    action = f"{HERE}/{_tail(connection)}"
    return Connected(
        id=_tail(connection),
        provider=_label(connection, page.service),
        person=AccountName(label=connection.label, name=connection.name),
        connected_at=connection.connected_at,
        scopes=scopes_shown(provider, connection.scopes) if has_scopes else None,
        shared=_shared(connection, action=action),
        standing=standing,
        ends_at=connection.ends_at if connection.warned_at is not None else None,
        csrf=page.csrf(connection.id),
        disconnect_action=f"{action}/disconnect",
        keep_action=f"{action}/keep",
        clients=tuple(
            Assistant(
                key=client.key,
                name=client.name,
                title=client.title,
                id=client.id,
                may_use=connection.only is None or client.key in connection.only,
            )
            for client in connection.clients
        ),
        is_limited_to_some=connection.only is not None,
        is_in_use=None if connection.is_active and len(alike) == 1 else connection.is_active,
        is_another_in_use=any(one.is_active for one in alike if one is not connection),
        switch_action=f"{action}/switch" if can_switch else None,
        reconnect_action=None if standing == "unused" or client is None else f"{action}/reconnect",
        manage=None if provider is None else provider.manage_page,
        is_sandbox=client is not None and is_at_sandbox(client.client_id),
        team=accounts.label_of_team(connection.team),
        members=tuple(
            TeamUse(name=use.name, used_at=use.at)
            for use in sorted(connection.members.values(), key=lambda use: use.at, reverse=True)
        ),
        is_managed=connection.connected_by in (None, viewer.owner),
    )


def _shared(connection: Connection, *, action: str) -> tuple[Sharing, ...]:
    """Return the tools that may use an account, the most recently used tool first."""
    used = connection.used
    tools = sorted(connection.tools, key=lambda tool: used.get(tool, _NEVER), reverse=True)
    return tuple(
        Sharing(
            tool=tool,
            tool_title=connection.titles.get(tool),
            used_at=used.get(tool),
            # Quote the name: it can contain any characters.
            stop_action=f"{action}/unshare?tool={quote(tool, safe='')}",
        )
        for tool in tools
    )


def _label(connection: Connection, service: Service) -> str:
    provider = service.kinds.accounts.connections.provider(connection)
    return connection.provider if provider is None else provider.label


def _tail(connection: Connection) -> str:
    """Return the account's id without the owner's tag, for use in addresses."""
    return connection.id[OWNER_TAG_CHARACTERS:]


# The question that reconnects an account. The person starts it on the page of their accounts. No
# tool is involved.
#
# Risks: reconnecting shares an account with another tool, or connects another person's account. The
# question names no tool, so the account keeps its tools. The question accepts only the provider's
# user id of the existing account, so no other account can be connected. If the person presses again
# while the question is open, the same question is returned.

OPEN_FOR = timedelta(minutes=10)


async def start_reconnecting(
    service: Service,
    connection: Connection,
    *,
    owner: str | None = None,
    is_for_user: bool = False,
) -> Elicitation | None:
    """Return the open question, or None if the account was disconnected or has no client here.

    `owner` is the person who asks on the page, if a team owns the account. `is_for_user`: the
    person is a user of the application.
    """
    owner, elicitations = owner or connection.owner, service.elicitations
    client = service.kinds.accounts.connections.client(connection)
    if client is None or connection.ended_at is not None:
        return None
    provider = service.kinds.accounts.connections.provider(connection)
    assert provider is not None  # a client has a provider
    whose: dict[str, Any] = {"tenant": connection.tenant, "account": connection.label}
    scopes = tuple(scope for scope in connection.scopes if SCOPE.fullmatch(scope))
    request = (
        AccountRequest(provider=provider, scopes=scopes, **whose)
        if provider.key is None
        else ApiKeyRequest(provider=provider, **whose)
    )
    dedupe_key = elicitations.owners.pepper.tag("join", "reconnect", connection.id, size=18)

    async def new_question() -> list[Elicitation]:
        held = await elicitations.holder(Elicitation, owner=owner, key=dedupe_key)
        if held is not None and not held.status.is_final:
            if elicitations.clock() < held.expires_at:
                return []
            held = await elicitations.end(held, Status.EXPIRED)
        new = await _question(service, connection, request, dedupe_key=dedupe_key, owner=owner)
        new = replace(new, is_for_user=is_for_user)
        return [new] if held is None else [states.release_key(held), new]

    written = await elicitations.write_rebuilt(new_question)
    if written:
        return await elicitations.get(written[-1].id)
    return await elicitations.holder(Elicitation, owner=owner, key=dedupe_key)


async def _question(
    service: Service,
    connection: Connection,
    request: AccountRequest,
    *,
    dedupe_key: str,
    owner: str,
) -> Elicitation:
    accounts, now = service.kinds.accounts, service.clock()
    id, expires_at = service.elicitations.new_id(owner), now + OPEN_FOR
    teams = () if connection.team is None else (connection.team,)
    asked = await accounts.asked(
        request,
        Asked(
            server=connection.server,
            tool="",
            client=None,
            message=request.message,
            digest=digest_of(request.kind, accounts.facts(request, teams=teams)),
        ),
        link=service.links.for_author(elicitation_id=id, expires_at=expires_at, now=now),
        by=AskedBy(owner=owner, server=connection.server, tool="", teams=teams),
    )
    terms = replace(
        convert(asked.terms, AccountTerms),
        person_id=connection.person_id,
        also=connection.scopes,
        team=connection.team,  # even if the team settings have changed
    )
    return Elicitation(
        id=id,
        owner=owner,
        kind=request.kind,
        request=replace(asked, terms=to_builtins(terms)),
        dedupe_key=dedupe_key,
        created_at=now,
        expires_at=expires_at,
    )
