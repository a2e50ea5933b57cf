"""The routes of accounts: what a user has connected, a token to it, and its end.

What could go wrong: a program that gets at an account that it never asked for. An account says
which tools and clients may use it, and a program is one of them by its name, as anywhere else: what
is not shared with it is 404. And a program that ends what others use: then it alone loses it.
"""

import logging
from http import HTTPStatus

from litestar import delete, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from flows.elicitation.calling_client import CallingClient
from flows.elicitation.tool_call import client_of
from flows.errors import ElicitError
from flows.oauth.connection import Connection
from webapp.api.access import Requester, holds
from webapp.api.asking import application_of, owner_for
from webapp.api.representations import (
    AccessToken,
    AccountList,
    ToldAccount,
    ToldDisconnection,
    Whose,
)
from webapp.api.states import told_account
from webapp.identity.api_keys import KeyScope
from webapp.service import Service

_ASKERS = [holds(KeyScope.ASK)]
_log = logging.getLogger(__name__)


class NoSuchAccount(ElicitError):
    """An id that is none of an account which this program may use."""

    name = "NO_SUCH_ACCOUNT"
    http_status = 404

    def __init__(self) -> None:
        super().__init__(
            "There is no account with this id that this program may use: GET /api/accounts lists "
            "those that there are, and a question of the kind oauth asks for one."
        )


class AccountLapsed(ElicitError):
    """An account whose token works no more, and cannot be renewed."""

    name = "ACCOUNT_LAPSED"
    http_status = 409

    def __init__(self) -> None:
        super().__init__(
            "This account works no more: ask the user to connect it again, with a question of the "
            "kind oauth."
        )


@get("/api/accounts", guards=_ASKERS)
async def list_accounts(
    requester: NamedDependency[Requester], service: NamedDependency[Service], user: Whose = None
) -> AccountList:
    """What a user has connected and lets this program use. A key for one user needs no `user`."""
    owner = owner_for(service, requester, user)
    found = await service.kinds.accounts.connections.all_of(owner)
    return AccountList(
        accounts=[
            told_account(service, one) for one in found if _is_seen_by(service, requester, one)
        ]
    )


@get("/api/accounts/{account_id:str}", guards=_ASKERS)
async def read_account(
    account_id: FromPath[str],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
    user: Whose = None,
) -> ToldAccount:
    """One account, without its token."""
    return told_account(service, await account_of(service, requester, account_id, user=user))


@delete("/api/accounts/{account_id:str}", guards=_ASKERS, status_code=HTTPStatus.OK)
async def disconnect_account(
    account_id: FromPath[str],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
    user: Whose = None,
) -> ToldDisconnection:
    """Revoke its token and forget it; where others use it too, only this program loses it."""
    accounts, mine = service.kinds.accounts, client_of(requester.program.program)
    found = await account_of(service, requester, account_id, user=user)
    if set(found.tools) != {mine}:
        await accounts.connections.unshare(found.owner, found.id, mine)
        return ToldDisconnection(ended=False)
    ended = await accounts.keys.disconnect(found.owner, found.id, by=requester.name)
    return ToldDisconnection(ended=True, revoked=ended.revoked, manage=ended.manage)


@get("/api/accounts/{account_id:str}/token", guards=[holds(KeyScope.TOKENS)])
async def read_token(
    account_id: FromPath[str],
    requester: NamedDependency[Requester],
    service: NamedDependency[Service],
    user: Whose = None,
) -> AccessToken:
    """Its access token, renewed if it was over; for a key with the scope `tokens`."""
    found = await working_account_of(service, requester, account_id, user=user)
    provider = service.kinds.accounts.connections.provider(found)
    assert provider is not None  # of an account that works
    _log.info("account.token_told", extra={"id": found.id, "key": requester.program.id})
    return AccessToken(
        access_token=found.access_token,
        expires_at=found.expires_at,
        scopes=found.scopes,
        api=provider.api,
        api_hosts=provider.api_hosts,
    )


async def account_of(
    service: Service, requester: Requester, id: str, *, user: str | None
) -> Connection:
    """The account with this id that the program may see. Raises NoSuchAccount."""
    owner = owner_for(service, requester, user)
    found = await service.kinds.accounts.connections.read(owner, id)
    if found is None or not _is_seen_by(service, requester, found):
        raise NoSuchAccount
    return found


async def working_account_of(
    service: Service, requester: Requester, id: str, *, user: str | None
) -> Connection:
    """The same with a token that works, and its use noted.

    Raises AccountLapsed, and Failed where the provider does not renew it now.
    """
    accounts = service.kinds.accounts
    found = await account_of(service, requester, id, user=user)
    if accounts.connections.client(found) is None:  # we are somebody else there by now
        raise AccountLapsed
    working = await accounts.keys.working(found)
    if working is None:
        raise AccountLapsed
    if not _is_seen_by(service, requester, working):  # the person has spoken meanwhile
        raise NoSuchAccount
    tool, client = user_of_accounts(requester)
    await accounts.connections.note_use(working, tool, client)
    return working


def user_of_accounts(requester: Requester) -> tuple[str, CallingClient]:
    """What the program is called among the tools and the clients that an account is shared with."""
    return client_of(requester.program.program), CallingClient(name=requester.program.program)


def _is_seen_by(service: Service, requester: Requester, found: Connection) -> bool:
    return found.server == application_of(service) and found.is_shared(*user_of_accounts(requester))
