"""The routes of accounts: list a user's connected accounts, get a token, disconnect.

Risks: a program gets access to an account that it never asked for. So each account lists the tools
and clients that may use it, and a program is listed by its name. For an account that is not shared
with the program, the response is 404. A program could also disconnect an account that others use.
Such an account stays connected, and only this program loses access.
"""

import logging
from collections.abc import Callable
from http import HTTPStatus

from litestar import delete, get, post
from litestar.params import FromPath, JSONBody
from msgspec import Struct

from flows.elicitation.tool_call import CallingClient, client_of
from flows.errors import ElicitError, NotAllowed
from flows.oauth.connection import Connection
from flows.oauth.declaration import Carrier
from flows.oauth.requests import Unreachable
from webapp.api.access import ApiLimits, CurrentRequester, Requester, requires
from webapp.api.asking import application_of, owner_for, teams_for
from webapp.api.representations import (
    AccessToken,
    AccountData,
    AccountList,
    DisconnectionResult,
    Whose,
)
from webapp.api.states import to_account_data
from webapp.http.parts import AnyRequest, part
from webapp.identity.api_keys import KeyScope
from webapp.oauth.importing import ConnectedElsewhere, Done

_ASKERS = [requires(KeyScope.ASK)]
_log = logging.getLogger(__name__)
_paces: Callable[[AnyRequest], ApiLimits] = part("paces")


class ImportedAccount(Struct, frozen=True, kw_only=True):
    """The result of an import.

    `imported`: the account is stored. `unchanged`: it was stored before, with the same tokens.
    `kept`: it was connected before, with other tokens. The server still uses those, and ignores the
    imported ones.
    """

    result: Done


class NoSuchAccount(ElicitError):
    """This program may use no account with this id."""

    name = "NO_SUCH_ACCOUNT"
    http_status = 404

    def __init__(self) -> None:
        super().__init__(
            "This program can use no account with this id: GET /api/accounts lists its accounts, "
            "and a question of the kind oauth or api_key asks for one."
        )


class AccountLapsed(ElicitError):
    """The account's token is no longer valid and cannot be renewed."""

    name = "ACCOUNT_LAPSED"
    http_status = 409

    def __init__(self) -> None:
        super().__init__(
            "This account no longer works: ask the user to connect it again, with a question of "
            "the kind oauth or api_key."
        )


class ProviderFailed(ElicitError):
    """The account's provider sent no response that can be used."""

    name = "PROVIDER_FAILED"
    http_status = 502


@get("/api/accounts", guards=_ASKERS)
async def list_accounts(requester: CurrentRequester, user: Whose = None) -> AccountList:
    """List the accounts that a user shares with this program. A single-user key needs no `user`."""
    service = requester.service
    owner, teams = owner_for(requester, user), teams_for(requester, user)
    server = application_of(service)
    found = await service.kinds.accounts.connections.seen_by(owner, teams, server=server)
    return AccountList(
        accounts=[to_account_data(service, one) for one in found if _is_seen_by(requester, one)]
    )


@post("/api/accounts", guards=[requires(KeyScope.IMPORT)], status_code=HTTPStatus.OK)
async def import_account(
    *,
    data: JSONBody[ConnectedElsewhere],
    requester: CurrentRequester,
    request: AnyRequest,
    user: Whose = None,
) -> ImportedAccount:
    """Store an account that the user connected in another product. The key needs `import`.

    The provider is asked whose account the access token opens. The account is shared with no tool
    and no program: the user allows tools and programs on the page. If the account is connected here
    already, nothing changes.
    """
    service = requester.service
    owner = owner_for(requester, user)
    importing, server = service.kinds.accounts.importing, application_of(service)
    with _paces(request).proxied.one(requester.who):
        try:
            result = await importing.one(data, owner=owner, server=server)
        except Unreachable as error:
            raise ProviderFailed(str(error)) from None
    _log.info("account.imported", extra={"result": result, "key": requester.program.id})
    return ImportedAccount(result=result)


@get("/api/accounts/{account_id:str}", guards=_ASKERS)
async def read_account(
    account_id: FromPath[str], requester: CurrentRequester, user: Whose = None
) -> AccountData:
    """Return an account, without its token."""
    found = await account_of(requester, account_id, user=user, uses=False)
    return to_account_data(requester.service, found)


@delete("/api/accounts/{account_id:str}", guards=_ASKERS, status_code=HTTPStatus.OK)
async def disconnect_account(
    account_id: FromPath[str], requester: CurrentRequester, user: Whose = None
) -> DisconnectionResult:
    """Revoke and erase the account. If others use the account, only this program loses access."""
    accounts, mine = requester.service.kinds.accounts, client_of(requester.program.program)
    found = await account_of(requester, account_id, user=user, uses=False)
    if found.is_service:
        raise NotAllowed("This is the server's own account. Only its operator can remove it.")
    if found.connected_by not in (None, owner_for(requester, user)):
        raise NotAllowed(
            "Another member of the team connected this account. Only that member, or an operator, "
            "can disconnect it."
        )
    if set(found.tools) != {mine}:
        await accounts.connections.unshare(found.owner, found.id, mine)
        return DisconnectionResult(ended=False)
    ended = await accounts.keys.disconnect(found.owner, found.id, by=requester.name)
    return DisconnectionResult(ended=True, revoked=ended.revoked, manage=ended.manage)


@get("/api/accounts/{account_id:str}/token", guards=[requires(KeyScope.TOKENS)])
async def read_token(
    account_id: FromPath[str], requester: CurrentRequester, user: Whose = None
) -> AccessToken:
    """Return the access token, renewed if it expired. The key needs the scope `tokens`."""
    found = await working_account_of(requester, account_id, user=user)
    connections = requester.service.kinds.accounts.connections
    api, api_hosts = connections.reach(found)
    provider = connections.provider(found)
    carrier = Carrier() if provider is None else provider.carrier
    _log.info("account.token_read", extra={"id": found.id, "key": requester.program.id})
    return AccessToken(
        access_token=found.access_token,
        token_type=carrier.scheme if found.dpop_key is None else "DPoP",
        header=carrier.header,
        query=carrier.query,
        expires_at=found.expires_at,
        scopes=found.scopes,
        api=api,
        api_hosts=api_hosts,
    )


async def account_of(
    requester: Requester, id: str, *, user: str | None, uses: bool = True
) -> Connection:
    """Return the account with this id. Raises NoSuchAccount if the program must not see it.

    With `uses=False`, also find an account that the person connected for a team, even if the person
    has left the team.
    """
    owner, teams = owner_for(requester, user), teams_for(requester, user)
    connections = requester.service.kinds.accounts.connections
    among = teams if uses else connections.teams
    found = await connections.read(connections.holder_of(id, owner=owner, teams=among), id)
    if found is None or not _is_seen_by(requester, found):
        raise NoSuchAccount
    if found.team not in (None, *teams) and found.connected_by != owner:
        raise NoSuchAccount
    return found


async def working_account_of(requester: Requester, id: str, *, user: str | None) -> Connection:
    """Return the account with a valid token, and record the use.

    Raises:
        NoSuchAccount: The program must not see the account.
        AccountLapsed: The token is no longer valid.
        Failed: The provider could not renew the token now.
    """
    accounts = requester.service.kinds.accounts
    found = await account_of(requester, id, user=user)
    if accounts.connections.client(found) is None:  # the OAuth client was removed or replaced
        raise AccountLapsed
    working = await accounts.keys.working(found)
    if working is None:
        raise AccountLapsed
    if not _is_seen_by(requester, working):  # unshared in the meantime
        raise NoSuchAccount
    tool, client = user_of_accounts(requester)
    owner = owner_for(requester, user)
    name = user if requester.person is None else requester.person.name
    await accounts.connections.note_use(working, tool, client, owner=owner, name=name)
    return working


def user_of_accounts(requester: Requester) -> tuple[str, CallingClient]:
    """Return the tool and client to which an account is shared if it is shared with the program."""
    return client_of(requester.program.program), CallingClient(name=requester.program.program)


def _is_seen_by(requester: Requester, found: Connection) -> bool:
    return found.server == application_of(requester.service) and found.is_shared(
        *user_of_accounts(requester)
    )
