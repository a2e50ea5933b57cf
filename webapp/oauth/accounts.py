"""Accounts (the kind `oauth`): asks for an account, and finds the account that answers.

Risks: one person's account is handed to another. So an account is found only by its owner, the
server that asks and the provider that it came from. A tool that did not ask for the account has to
ask the person once. An account is not used up, so nothing is erased when it is delivered.
"""

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from flows.elicitation.states import Asked, Elicitation, Json, Status
from flows.elicitation.traits import ConnectedBefore
from flows.errors import Failed, InvalidQuestion
from flows.oauth.access_token import Team
from flows.oauth.authorization_code import AccountTerms, OauthFlow
from flows.oauth.connection import Connection
from flows.oauth.provider import Client, Provider
from flows.oauth.token_exchange import exchanged
from flows.question import Link
from flows.requests import AccountRequest, ApiKeyRequest, wrong_verb
from webapp.elicitations.complete import complete_elicitation
from webapp.elicitations.question_kind import AskedBy, QuestionKind
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.oauth.access_tokens import AccessTokens
from webapp.oauth.api_keys import TypedKeys
from webapp.oauth.clients import Clients, origins_of, place_of
from webapp.oauth.code_exchange import CodeExchange
from webapp.oauth.connections import NOT_SHARED, Connections, begun_with
from webapp.oauth.importing import Importing
from webapp.oauth.keep_alive import KeepAlive
from webapp.oauth.token_failures import TokenFailures
from webapp.records.values import RefusedRegistration, Value

# A new token is requested this long before the earlier exchanged token expires.
EXCHANGED_BEFORE = timedelta(seconds=60)
_log = logging.getLogger(__name__)


class Accounts(QuestionKind):
    """The kinds `oauth` and `api_key`, of an AccountRequest.

    `credentials` are this server's client ids and secrets, by the provider's name.
    """

    can_answer_without_asking = True

    def __init__(
        self,
        *,
        elicitations: Elicitations,
        outbound: Outbound,
        providers: Mapping[str, Provider],
        credentials: Mapping[str, tuple[str, str]],
        config: str,
        teams: Sequence[Team],
        issuers: Mapping[str, Client],
    ) -> None:
        """`issuers` maps the name of each issuer of people to this server's client there."""
        self._elicitations = elicitations
        self._outbound = outbound
        self._issuers = issuers
        self._clients = Clients(providers=providers, credentials=credentials, config=config)
        self.connections = Connections(
            elicitations=elicitations, clients=self._clients, teams=teams
        )
        self.failures = TokenFailures(elicitations)
        self.keys = AccessTokens(
            elicitations=elicitations,
            outbound=outbound,
            connections=self.connections,
            failures=self.failures,
        )
        self.flow = OauthFlow(self._clients.clients)
        self.code_exchange = CodeExchange(
            elicitations=elicitations,
            outbound=outbound,
            clients=self._clients,
            connections=self.connections,
            failures=self.failures,
            flow=self.flow,
        )
        self.keep_alive = KeepAlive(
            elicitations=elicitations, connections=self.connections, keys=self.keys
        )
        self.importing = Importing(
            elicitations=elicitations,
            outbound=outbound,
            clients=self._clients,
            connections=self.connections,
        )
        self.api_keys = TypedKeys(
            elicitations=elicitations, outbound=outbound, exchange=self.code_exchange
        )

    def redirect_flow(self) -> OauthFlow:
        return self.flow

    def now(self) -> datetime:
        return self._elicitations.clock()

    def facts(self, request: AccountRequest, *, teams: Collection[str] = ()) -> Json:
        """Return the facts of a question by a person of these teams.

        The facts contain the team whose account is used. A person who has left the team is
        therefore asked for an account again.
        """
        client = self._clients.of(request.provider)
        if (client.provider.key is not None) != isinstance(request, ApiKeyRequest):
            raise InvalidQuestion(wrong_verb(client.provider))
        if client.provider.service_account and request.account is not None:
            raise InvalidQuestion(
                f"{client.provider.label} has only this server's own account: leave account out."
            )
        facts = {**_mapping(request.facts()), "client": client.client_id, "at": place_of(client)}
        named = {
            "tenant": _tenant(request, client),
            "team": self.connections.team_for(client.provider.name, teams),
        }
        return {**facts, **{key: value for key, value in named.items() if value is not None}}

    def must_be_member(self, team: str | None, *, until: datetime | None) -> None:
        """Check that the call still proves membership of the account's team. Raises Failed."""
        if team is not None and until is not None and self.now() >= until:
            raise Failed(
                "The access token of this call has expired, so it no longer proves that the caller "
                f"is in the team {self.connections.label_of_team(team)}. Call again with a new "
                "token."
            )

    async def _held(
        self, request: AccountRequest, client: Client, by: AskedBy
    ) -> Connection | None:
        """Return the account of the asker's team, or of the asker, that the request names.

        Raises Failed if the call no longer proves that the asker is in the team.
        """
        team, tenant = (
            self.connections.team_for(client.provider.name, by.teams),
            _tenant(request, client),
        )
        self.must_be_member(team, until=by.teams_until)
        holder = self.connections.holder(by.owner, team)
        key = self.connections.key(client, server=by.server)
        return await self.connections.find(holder, key, account=request.account, tenant=tenant)

    def _holder_of(self, elicitation: Elicitation) -> str:
        return self.connections.holder(elicitation.owner, self.terms(elicitation).team)

    async def known(self, request: AccountRequest, by: AskedBy) -> Json | None:
        """Return the content of the account in use, or None if the person must be asked.

        If the tool's body already received an account in this call, return the same account, even
        if another account is in use now.

        Raises:
            Failed: The provider could not renew an expired token now. Or the account that the call
                already received cannot be used any more, and another account is in use now or
                this is a later request of the call.
        """
        client = self._clients.of(request.provider)
        if client.provider.service_account:
            return await self._own(request, client, by)
        held = await self._held(request, client, by)
        if by.account is None:
            given = None if held is None else await self._given(held, request, by)
            return given or await self._exchanged(request, client, by)
        begun = await self.connections.received_account(by.account, by)
        given = await self._given(begun, request, by)
        is_other = held is not None and held.id != by.account
        if given is None and (by.is_later_request or is_other):
            raise Failed(
                "The account no longer works. Call again, and the person is asked to connect it "
                "again."
            )
        return given

    async def _own(self, request: AccountRequest, client: Client, by: AskedBy) -> Json:
        """Return the content of this server's own account, which every tool may use."""
        scopes = client.provider.scopes_to_request(tuple(dict.fromkeys(request.scopes)))
        at = client.for_tenant(_tenant(request, client))
        found = await self.connections.own(at, scopes, server=by.server)
        working = await self.keys.working(found)
        if working is None:  # never true: no refusal ends such an account
            raise Failed(f"{client.provider.label} issued no token.")
        await self.connections.note_use(working, by.tool, by.client, owner=by.owner)
        return self.connections.content(working, scopes=request.scopes)

    async def _exchanged(self, request: AccountRequest, client: Client, by: AskedBy) -> Json | None:
        """Exchange the person's own token for an account. Return the account's content, or None.

        If the result is None, ask the person. Return None if the exchange is refused, or if the
        person has disconnected such an account or stopped sharing it with the tool or its client,
        for any scopes. Only a provider that the operator declared can use an exchange.
        """
        bearer, provider = by.bearer, client.provider
        if bearer is None or not self._may_exchange(request, client, by, issuer=bearer.issuer):
            return None
        found = self.connections.new_exchanged(client, request.scopes, by=by)
        stored = await self._elicitations.read(Connection, owner=by.owner, id=found.id)
        is_new = stored is None or stored.is_ending or not stored.is_shared(by.tool, by.client)
        if is_new and await self.connections.must_ask_for_exchanged(found.lookup_key, by):
            return None
        now = self._elicitations.clock()
        if stored is None or not stored.is_usable(now=now + EXCHANGED_BEFORE):
            talk = exchanged(
                client,
                bearer,
                scopes=request.scopes,
                issuer_client=self._issuers.get(bearer.issuer),
                now=now,
            )
            try:
                grant = await self._outbound.run(talk, to=client)
            except Failed as error:
                about = {"provider": provider.name, "why": str(error)}
                _log.warning("account.not_exchanged", extra=about)
                return None
            if stored is not None and stored.person_id != grant.person.id:
                about = {"provider": provider.name, "why": "another person than before"}
                _log.warning("account.not_exchanged", extra=about)
                return None
            stored = await self.connections.store_exchanged(found, grant)
        if stored is not None:  # the person may have ended the sharing during the exchange
            stored = await self.connections.share_exchanged(stored, by.tool, by.client)
        if stored is None or not self.connections.is_enough(stored, request.scopes, client):
            return None
        await self.connections.note_use(stored, by.tool, by.client, owner=by.owner)
        return self.connections.content(stored, scopes=request.scopes)

    def _may_exchange(
        self, request: AccountRequest, client: Client, by: AskedBy, *, issuer: str | None
    ) -> bool:
        how, name = client.provider.exchange, client.provider.name
        is_any = request.account is None and not self.connections.team_for(name, by.teams)
        return client.is_operators and is_any and how is not None and how.issuer == issuer

    async def _given(self, found: Connection, request: AccountRequest, by: AskedBy) -> Json | None:
        client = self._clients.of(request.provider)
        if not found.is_shared(by.tool, by.client):
            return None
        if not self._satisfies(found, request, client, by):
            return None
        working = await self.keys.working(found)
        # During the renewal, scopes may be lost and the person may stop sharing the account.
        if working is None or not working.is_shared(by.tool, by.client):
            return None
        if not self._satisfies(working, request, client, by):
            return None
        await self.connections.note_use(working, by.tool, by.client, owner=by.owner, name=by.asker)
        return self.connections.content(working, scopes=request.scopes)

    def _satisfies(self, held: Connection, of: AccountRequest, client: Client, by: AskedBy) -> bool:
        again = of.again and by.account is None  # a call with an account does not ask again
        return self.connections.is_enough(held, of.scopes, client, asks_again=again)

    async def is_connected(self, request: AccountRequest, by: AskedBy) -> bool:
        """Return True if an account with enough scopes is connected, even if not for this tool."""
        client = self._clients.of(request.provider)
        if client.provider.service_account:
            return True
        key = self.connections.key(client, server=by.server)
        is_exchanged = self._may_exchange(request, client, by, issuer=by.issuer)
        if is_exchanged and not await self.connections.must_ask_for_exchanged(key, by):
            return True
        found = await self._held(request, client, by)
        return found is not None and self._satisfies(found, request, client, by)

    async def asked(
        self, request: AccountRequest, asked: Asked, *, link: Link, by: AskedBy
    ) -> Asked:
        """Return `asked` with the terms of the account request.

        Raises TokenRefused while the provider refuses this server's registration. The person is
        then not asked, because they could not connect an account.
        """
        client = self._clients.of(request.provider)
        await self.failures.check(client, owner=by.owner)
        held, tenant = await self._held(request, client, by), _tenant(request, client)
        terms = AccountTerms(
            provider=client.provider.name,
            client_id=client.client_id,
            scopes=tuple(dict.fromkeys(request.scopes)),
            also=held.scopes if held is not None else (),
            account=request.account,
            tenant=tenant,
            reason=request.reason,
            again=request.again,
            declared=self._clients.declared(client),
            team=self.connections.team_for(client.provider.name, by.teams),
            asker=by.asker,
        )
        # For a provider that the operator declares, use the label that people know.
        message = dataclasses.replace(request, provider=client.provider).message
        return replace(
            asked,
            message=message,
            origins=origins_of(client if tenant is None else client.for_tenant(tenant)),
            terms=msgspec.to_builtins(terms),
        )

    async def answer(self, claimed: Elicitation) -> Json:
        """Return the account's current data, which the person may have changed since accepting.

        Raises Failed if the tool can no longer use an account; the next call then asks again.
        """
        asked, found = claimed.request, await self._answered_with(claimed)
        tool, client = asked.tool, asked.calling_client
        working = await self.keys.working(found) if found.is_shared(tool, client) else found
        if working is None:
            why = (
                "The account no longer works. Call again, and the person is asked to connect it "
                "again."
            )
            raise Failed(why, elicitation_id=claimed.id)
        if not working.is_shared(tool, client):
            raise Failed(NOT_SHARED, elicitation_id=claimed.id)
        # The person may have granted fewer scopes than requested, and the renewed token may have
        # even fewer.
        if self._is_enough(found, claimed) and not self._is_enough(working, claimed):
            why = (
                "The account now has fewer permissions than this call needs. Call again, and the "
                "person is asked for them."
            )
            raise Failed(why, elicitation_id=claimed.id)
        noted = await self.connections.note_begun(claimed, working)
        if begun_with(noted) not in (None, working.id):  # another request got an account first
            return await self.answer(noted)
        terms = self.terms(claimed)
        await self.connections.note_use(
            working, tool, client, owner=claimed.owner, name=terms.asker
        )
        return self.connections.content(working, scopes=terms.scopes)

    def return_path(self, elicitation: Elicitation) -> str:
        return f"/callback/{self.terms(elicitation).provider}"

    def terms(self, elicitation: Elicitation) -> AccountTerms:
        terms = msgspec.convert(elicitation.request.terms, AccountTerms)
        self._clients.learn(terms.declared)
        return terms

    def client_for(self, elicitation: Elicitation) -> Client | None:
        """Return this server's OAuth client at the question's provider; None if not configured."""
        return self._clients.get(self.terms(elicitation).provider)

    async def connected(self, elicitation: Elicitation) -> Connection | None:
        """Return the account that the question led to, also after its delivery."""
        id = _mapping(elicitation.content).get("account")
        if isinstance(id, str):
            return await self.connections.read(self._holder_of(elicitation), id)
        client, settled_at = self.client_for(elicitation), elicitation.settled_at
        if client is None or settled_at is None:
            return None
        key = self.connections.key(client, server=elicitation.request.server)
        terms = self.terms(elicitation)
        account, tenant = terms.account, terms.tenant
        holder = self.connections.holder(elicitation.owner, terms.team)
        found = await self.connections.find(holder, key, account=account, tenant=tenant)
        if found is None or found.connected_at > settled_at:
            return None  # a later question connected this account, perhaps another person's
        return found

    async def former(self, elicitation: Elicitation, connected: Connection) -> Connection | None:
        """Return the account that the new one replaced, if it belongs to another person."""
        if connected.replaced_id is None or connected.came_by != elicitation.id:
            return None
        return await self.connections.read(connected.owner, connected.replaced_id)

    async def offers(self, elicitation: Elicitation) -> tuple[Connection, ...]:
        """Return the connected accounts of this server that would answer the question.

        The account in use comes first. An expired token is renewed only when its account is chosen,
        so listing the accounts changes nothing.
        """
        terms, client = self.terms(elicitation), self.client_for(elicitation)
        if client is None or not elicitation.request.tool:  # a page asked, and no tool
            return ()
        key = self.connections.key(client, server=elicitation.request.server)
        return tuple(
            [
                found
                for found in await self.connections.of_key(self._holder_of(elicitation), key)
                if found.is_wanted(terms.account, terms.tenant)
                and self.connections.is_enough(found, terms.scopes, client)
            ]
        )

    async def refused_registrations(self) -> Sequence[RefusedRegistration]:
        """Return the registrations of this server that providers refuse, for the operator."""
        return await self.failures.standing(tuple(self._clients.clients.values()))

    def label_of(self, provider: str) -> str:
        """Return the name that people know the provider by."""
        declared = self._clients.provider(provider)
        return provider if declared is None else declared.label

    def label(self, elicitation: Elicitation) -> str:
        client = self.client_for(elicitation)
        return "" if client is None else client.provider.label

    async def share(self, elicitation: Elicitation, *, account: str) -> None:
        """Let the tool that asks use an account that is already connected.

        `account` is the end of the id of the account shown on the page. Do nothing if that account
        no longer exists or the question has ended. Unlike a provider's reply, a press of the button
        is not accepted after the question has expired. If the question has already connected
        another person's account, put the earlier account in use again. Raises Failed if the
        provider could not renew an expired token now.
        """
        if elicitation.status is Status.ACCEPTED:
            await self._switch_back(elicitation, account=account)
            return
        id = self._holder_of(elicitation) + account
        offers = await self.offers(elicitation)
        offered = next((one for one in offers if one.id == id), None)
        if offered is None or self._elicitations.clock() >= elicitation.expires_at:
            return
        working, client = await self.keys.working(offered), self.client_for(elicitation)
        scopes = self.terms(elicitation).scopes
        if working is None or client is None:
            return
        if not self.connections.is_enough(working, scopes, client):
            return  # renewed with fewer scopes: the page shows the current state
        is_named = self.terms(elicitation).names_one

        async def chosen() -> list[Value]:
            return await self.connections.chosen(offered, elicitation.request, is_named=is_named)

        is_own = offered.owner == elicitation.owner

        async def also(_: Elicitation) -> Sequence[Value]:
            return await chosen() if is_own else ()

        if not is_own:  # the team's rows need a separate write
            await self._elicitations.write_rebuilt(chosen)
        proof, answer = ConnectedBefore(account=offered.id), {"account": offered.id}
        await complete_elicitation(self._elicitations, elicitation.id, answer, proof, also=also)

    async def _answered_with(self, claimed: Elicitation) -> Connection:
        """Return the account that the person allowed, or the account that they put in use later.

        If the call already received an account, return the same account, because the tool may have
        made changes there.
        """
        begun = begun_with(claimed)
        id = begun or str(_mapping(claimed.content).get("account"))
        found = await self.connections.read(self._holder_of(claimed), id)
        if found is None:
            raise Failed("The account was disconnected in the meantime.", elicitation_id=claimed.id)
        is_named = self.terms(claimed).names_one
        if begun or is_named or not found.is_put_aside(since=claimed.settled_at):
            return found
        instead = await self.connections.find(found.owner, found.lookup_key, account=None)
        asked = claimed.request
        is_shared = instead is not None and instead.is_shared(asked.tool, asked.calling_client)
        if instead is None or not is_shared or not self._is_enough(instead, claimed):
            why = "The person now uses another account. Call again to ask for that account."
            raise Failed(why, elicitation_id=claimed.id)
        return instead

    def _is_enough(self, found: Connection, claimed: Elicitation) -> bool:
        client, scopes = self.connections.client(found), self.terms(claimed).scopes
        return client is not None and self.connections.is_enough(
            found, scopes, client, asks_again=False
        )

    async def _switch_back(self, elicitation: Elicitation, *, account: str) -> None:
        """Put the earlier account in use again; do nothing for any other account."""
        connected = await self.connected(elicitation)
        if elicitation.status is not Status.ACCEPTED or connected is None:
            return
        previous = await self.former(elicitation, connected)
        if previous is not None and previous.id == previous.owner + account:
            await self.connections.switch(previous.owner, previous.id)


def _tenant(request: AccountRequest, client: Client) -> str | None:
    """Return the host of the tenant that the tool named, or None. Raises InvalidQuestion."""
    if request.tenant is None:
        return None
    return client.provider.for_tenant(request.tenant).tenant


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}
