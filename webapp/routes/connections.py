"""The pages of connected accounts: what a person has connected, and how it ends.

What could go wrong: an id of somebody else's. So every look-up is by whoever is at the browser and
by id, an address carries no owner, and what is another's is not there at all. A GET changes
nothing.
"""

import logging
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import groupby
from typing import Any, TypeAlias
from urllib.parse import quote

from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, RawBody

from flows.errors import Failed
from flows.oauth.connection import Connection
from webapp.http.requests import cookies_of, parsed, query_of
from webapp.oauth.clients import is_at_sandbox
from webapp.pages.views import AccountName, ProviderTrouble, Scope
from webapp.pages.views_connections import (
    AccountGroup,
    Assistant,
    Connected,
    ConnectionsPage,
    Disconnected,
    Sharing,
    Standing,
)
from webapp.records.ids import OWNER_TAG_CHARACTERS
from webapp.routes import reconnect as reconnecting
from webapp.routes.answers import Answers, see_other
from webapp.routes.closed import closed
from webapp.routes.fields import refuse_form
from webapp.routes.openers import (
    SIGN_IN,
    sign_in_button,
    sign_in_targets,
    with_cookie,
)
from webapp.service import Service

HERE = "/connections"
_NEVER = datetime.min.replace(tzinfo=UTC)
_Asked: TypeAlias = Request[Any, Any, Any]
_log = logging.getLogger(__name__)


@get(HERE)
async def connections(
    request: _Asked, service: NamedDependency[Service], answers: NamedDependency[Answers]
) -> Response[Any]:
    """All that whoever looks has connected."""
    viewer = await service.identity.viewer(request.scope, cookies_of(request))
    if viewer is None:
        return closed(request, service, answers, of="connections")
    cookie, cookies = with_cookie(request, service)
    cookies += await service.identity.kept_up(cookies_of(request))
    found = await service.kinds.accounts.list(viewer.owner)
    has_session = viewer.session is not None
    view = ConnectionsPage(
        server=answers.server,
        viewer=viewer.label,
        sign_out_csrf=service.browser.csrf(cookie, subject=SIGN_IN) if has_session else None,
        sign_in=None if has_session else sign_in_button(service, back=HERE, cookie=cookie),
        now=service.clock(),
        groups=tuple(
            AccountGroup(
                name=server,
                connected=tuple(
                    [
                        _connected(one, found, service, cookie=cookie, served=answers.server)
                        for one in group
                    ]
                ),
            )
            for server, group in groupby(found, key=lambda one: one.server)
        ),
    )
    return answers.page(view, form_targets=sign_in_targets(service), cookies=cookies)


@post(HERE + "/{id:str}/disconnect", status_code=HTTPStatus.OK)
async def disconnect(
    request: _Asked,
    *,
    id: FromPath[str],
    body: RawBody,
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """Give its keys back and forget it; pressed again, what was said then."""
    found = await _asked_for(id, request, body, service, answers)
    if isinstance(found, Response):
        return found
    try:
        done = await service.kinds.accounts.disconnect(found.owner, found.id)
    except Failed as error:
        error_id = secrets.token_hex(6)
        _log.warning("account.not_disconnected", exc_info=error, extra={"error_id": error_id})
        cookie = service.browser.cookie_of(cookies_of(request)) or ""
        trouble = ProviderTrouble(
            server=answers.server,
            provider=_label(found, service),
            error_id=error_id,
            again_action=f"{HERE}/{id}/disconnect",
            csrf=service.browser.csrf(cookie, subject=found.id),
        )
        return answers.page(trouble, status=HTTPStatus.BAD_GATEWAY)
    if found.picture is not None:
        service.pictures.forget(found.picture)
    view = Disconnected(
        server=answers.server,
        provider=_label(found, service),
        account=found.label,
        revoked=done.revoked,
        manage=done.manage,
    )
    return answers.page(view)


@post(HERE + "/{id:str}/unshare", status_code=HTTPStatus.SEE_OTHER)
async def unshare(
    request: _Asked,
    *,
    id: FromPath[str],
    body: RawBody,
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """A tool must ask before it uses the account again."""
    found = await _asked_for(id, request, body, service, answers)
    if isinstance(found, Response):
        return found
    tool = query_of(request).get("tool", [""])[-1]
    await service.kinds.accounts.unshare(found.owner, found.id, tool)
    return see_other(f"{HERE}#{_tail(found)}")


@post(HERE + "/{id:str}/keep", status_code=HTTPStatus.SEE_OTHER)
async def keep(
    request: _Asked,
    *,
    id: FromPath[str],
    body: RawBody,
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """Only the ticked ones of the person's assistants may use it, or all of them."""
    found = await _asked_for(id, request, body, service, answers)
    if isinstance(found, Response):
        return found
    is_for_all = query_of(request).get("all", [])[-1:] == ["1"]
    clients = None if is_for_all else parsed(body).get("client", [])
    await service.kinds.accounts.keep_to(found.owner, found.id, clients)
    return see_other(f"{HERE}#{_tail(found)}")


@post(HERE + "/{id:str}/switch", status_code=HTTPStatus.SEE_OTHER)
async def switch(
    request: _Asked,
    *,
    id: FromPath[str],
    body: RawBody,
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """The next call gets this account, also one that had a yes for another; or else it asks."""
    found = await _asked_for(id, request, body, service, answers)
    if isinstance(found, Response):
        return found
    await service.kinds.accounts.switch(found.owner, found.id)
    return see_other(f"{HERE}#{_tail(found)}")


@post(HERE + "/{id:str}/reconnect", status_code=HTTPStatus.SEE_OTHER)
async def reconnect(
    request: _Asked,
    *,
    id: FromPath[str],
    body: RawBody,
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
) -> Response[Any]:
    """Ask for it anew, with all that it may do; the link of the question goes on."""
    found = await _asked_for(id, request, body, service, answers)
    if isinstance(found, Response):
        return found
    elicitation = await reconnecting.reconnect(service, found)
    if elicitation is None:
        return see_other(f"{HERE}#{_tail(found)}")
    return see_other(service.links.of(elicitation, now=service.clock()))


async def _asked_for(
    id: str, request: _Asked, body: bytes, service: Service, answers: Answers
) -> Connection | Response[Any]:
    """The one that a form is about, also if it is over; else the page for whoever may not send it.

    Raises NotFoundException for one that is not there, and for somebody else's.
    """
    viewer = await service.identity.viewer(request.scope, cookies_of(request))
    if viewer is None:
        return closed(request, service, answers, of="connections")
    owner = viewer.owner
    found = await service.elicitations.read(Connection, owner=owner, id=owner + id)
    if found is None:
        raise NotFoundException
    refused = refuse_form(parsed(body), request, service, answers, subject=found.id)
    return refused or found


def _connected(
    connection: Connection,
    among: Sequence[Connection],
    service: Service,
    *,
    cookie: str,
    served: str,
) -> Connected:
    kept = service.kinds.accounts.connections
    client, provider = kept.client(connection), kept.provider(connection)
    standing: Standing = "works"
    if client is None and connection.server == served:
        standing = "unused"  # what another server is set up for is not known here
    elif not connection.is_usable(now=service.clock()):
        standing = "over"
    alike = [one for one in among if one.key == connection.key]
    can_switch = standing == "works" and not connection.holds_key
    words: Mapping[str, str] = {} if provider is None else provider.scope_words
    has_scopes = provider is None or provider.has_scopes
    action = f"{HERE}/{_tail(connection)}"
    return Connected(
        id=_tail(connection),
        provider=_label(connection, service),
        person=AccountName(label=connection.label, name=connection.name),
        connected_at=connection.connected_at,
        scopes=tuple([Scope(words=words.get(each, each), raw=each) for each in connection.scopes])
        if has_scopes
        else None,
        shared=_shared(connection, action=action),
        standing=standing,
        csrf=service.browser.csrf(cookie, subject=connection.id),
        disconnect_action=f"{action}/disconnect",
        keep_action=f"{action}/keep",
        clients=tuple(
            Assistant(
                key=client.key,
                name=client.name,
                id=client.id,
                may_use=connection.only is None or client.key in connection.only,
            )
            for client in connection.clients
        ),
        is_kept_to_some=connection.only is not None,
        is_in_use=None if connection.holds_key and len(alike) == 1 else connection.holds_key,
        is_another_in_use=any(one.holds_key for one in alike if one is not connection),
        switch_action=f"{action}/switch" if can_switch else None,
        reconnect_action=None if standing == "unused" or client is None else f"{action}/reconnect",
        manage=None if provider is None else provider.manage,
        is_sandbox=client is not None and is_at_sandbox(client.client_id),
    )


def _shared(connection: Connection, *, action: str) -> tuple[Sharing, ...]:
    """Whoever used it last comes first."""
    used = connection.used
    tools = sorted(connection.tools, key=lambda tool: used.get(tool, _NEVER), reverse=True)
    return tuple(
        Sharing(
            tool=tool,
            used_at=used.get(tool),
            # Written so that the very name comes back, whatever signs are in it.
            stop_action=f"{action}/unshare?tool={quote(tool, safe='')}",
        )
        for tool in tools
    )


def _label(connection: Connection, service: Service) -> str:
    provider = service.kinds.accounts.connections.provider(connection)
    return connection.provider if provider is None else provider.label


def _tail(connection: Connection) -> str:
    """What an address carries: without the owner's tag."""
    return connection.id[OWNER_TAG_CHARACTERS:]
