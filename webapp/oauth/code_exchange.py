"""The exchange of an authorization code, and the storage of the granted account.

Risks: a code is exchanged twice, a code is exchanged for a question that has ended, or the person
connects another account than the requested one. So the state is used up before the exchange. An
account that was granted too late for its question is stored for the next question.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from flows.elicitation.flow import come_back, fail_attempt
from flows.elicitation.states import Completion, Elicitation, Json, Status
from flows.elicitation.tool_call import seen
from flows.elicitation.traits import ConnectedBefore, Exchanged, traits_of
from flows.errors import Denied, Failed, NotAccepted, NotPossible
from flows.oauth.authorization_code import AccountTerms, Grant, OauthFlow, StoredAttempt
from flows.oauth.connection import Connection, planned, titled
from flows.oauth.device_flow import DeviceCode
from flows.oauth.responses import Person, TokenSet
from flows.oauth.revocation import revoke
from flows.oauth.token_errors import is_temporary_error
from webapp.elicitations.complete import complete_elicitation
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.oauth.clients import Clients
from webapp.oauth.connections import Connections
from webapp.oauth.token_failures import Step, TokenFailures
from webapp.records.values import Value

SHOWN_SCOPES_AT_MOST = 300  # characters of scopes in a log line
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CodeExchange:
    elicitations: Elicitations
    outbound: Outbound
    clients: Clients
    connections: Connections
    failures: TokenFailures
    flow: OauthFlow

    async def connect(
        self,
        elicitation: Elicitation,
        *,
        state: str,
        code: str,
        callback: Mapping[str, str] | None = None,
    ) -> None:
        """Exchange the code once, and settle the question.

        `callback` has the callback's other parameters that the provider's declaration uses.

        Cancelling the caller does not stop the work. Raises NotPossible if the state was already
        used.
        """
        await self.elicitations.run_to_completion(
            self._connect(elicitation, state=state, code=code, callback=callback)
        )

    async def refuse(self, elicitation: Elicitation, error: NotAccepted) -> None:
        """Settle the question as denied or failed, as the provider answered."""
        status = Status.DENIED if isinstance(error, Denied) else Status.FAILED
        with suppress(NotPossible):
            await self.elicitations.settle(elicitation.id, status, why=_why(error))

    async def _connect(
        self,
        elicitation: Elicitation,
        *,
        state: str,
        code: str,
        callback: Mapping[str, str] | None,
    ) -> None:
        now = self.elicitations.clock()
        current = await self.elicitations.change(
            elicitation.id, lambda e: come_back(e, state=state, now=now)
        )
        redeemed = list[TokenSet]()
        talk = self.flow.finish(
            current, code=code, now=now, callback=callback, on_tokens=redeemed.append
        )
        assert current.attempt is not None
        stored, terms = msgspec.convert(current.attempt.kept, StoredAttempt), self._terms(current)
        try:
            client = self.clients.get(terms.provider)
            grant = await self.outbound.run(talk, to=client)
        except Exception as error:  # noqa: BLE001 - any error of the exchange settles the question
            hidden = (code, stored.verifier)
            noted = await self._note(current, error, step="exchange", hidden=hidden)
            for tokens in redeemed:
                await self.revoke_unidentified(current, tokens, stored)
            if await self._can_press_again(current, error):
                return
            if not isinstance(noted, Denied | Failed):
                noted = Failed("The server could not read the provider's response.")
            await self.refuse(current, noted)
            return
        await self.finish(
            current,
            terms,
            grant,
            token_endpoint=stored.token_endpoint,
            client_auth=stored.client_auth,
        )

    async def callback_refused(self, elicitation: Elicitation, error: Denied | Failed) -> None:
        """Settle the question after the browser came back with an error instead of a code.

        If the provider is temporarily unavailable, the question stays open. Do nothing if the state
        was already used, for example by an exchange that has not ended.
        """
        now, attempt = self.elicitations.clock(), elicitation.attempt
        state = None if attempt is None else attempt.state
        if state is None:
            return
        try:
            current = await self.elicitations.change(
                elicitation.id, lambda e: come_back(e, state=state, now=now)
            )
        except NotPossible:
            return
        if isinstance(error, Failed):
            await self._note(current, error, step="callback")
        if not await self._can_press_again(current, error):
            await self.refuse(current, error)

    async def _can_press_again(self, current: Elicitation, error: Exception) -> bool:
        """Reopen the link and return True if the error is temporary and attempts are left."""
        attempt = current.attempt
        if attempt is None or not is_temporary_error(error):
            return False
        number, now = attempt.number, self.elicitations.clock()
        try:
            await self.elicitations.change(
                current.id, lambda e: fail_attempt(e, number=number, now=now)
            )
        except NotPossible:
            return False
        return True

    async def finish(
        self,
        current: Elicitation,
        terms: AccountTerms,
        grant: Grant,
        *,
        token_endpoint: str | None,
        client_auth: str,
    ) -> bool:
        """Store the granted account, and settle the question.

        Return False if the granted account is not the one that was asked for. `client_auth` is
        how this server authenticated at the token endpoint.
        """
        connection = self._connection(
            current, terms, grant, token_endpoint=token_endpoint, client_auth=client_auth
        )
        if grant.person.own_id is not None:
            connection = await self.connections.same_row(connection, own_id=grant.person.own_id)
        client = self.clients.clients[terms.provider]
        await self.failures.clear(client, owner=current.owner)
        self._note_scopes(current, grant, connection)
        if not terms.wants(grant.person):
            other = Failed("The person connected another account than the requested one.")
            await self._note(current, other, step="exchange")  # `other` names no people
            await self.refuse(current, Failed(why_not(terms, grant.person)))
            await self._revoke(connection, owner=current.owner)
            return False

        stored, owner = connection, current.owner

        async def placed() -> Sequence[Value]:
            nonlocal stored  # unlike `connection`, the stored row also has the earlier tools
            is_named = terms.names_one
            *others, stored = await self.connections.placed(connection, is_named=is_named)
            return (*others, stored)

        async def also(_: Elicitation) -> Sequence[Value]:
            return await placed() if connection.owner == owner else ()

        if connection.owner != owner:  # the team's rows need a separate write
            await self.elicitations.write_rebuilt(placed)

        proof, answer = Exchanged(account=connection.id), {"account": connection.id}
        done = await complete_elicitation(self.elicitations, current.id, answer, proof, also=also)
        is_unsettled = done in (Completion.ALREADY_SETTLED, Completion.UNKNOWN)
        if is_unsettled and connection.owner == owner:
            # Too late for this question: store the account for the next one.
            await self.elicitations.write_rebuilt(placed)
        _log.info("account.connected", extra={"id": current.id, "provider": connection.provider})
        await self._answer_alike(stored, owner=owner)
        return True

    def _note_scopes(self, current: Elicitation, grant: Grant, connection: Connection) -> None:
        """Log a warning if the provider's reply names scopes, but none of the requested ones.

        The declaration then probably lacks the spelling of the provider's replies.
        """
        is_odd = grant.names_scopes and grant.asked and set(grant.asked) <= {*connection.withheld}
        if is_odd:
            _log.warning(
                "account.no_scope_recognized: If the person granted the scopes, correct "
                "reply_scope_separator, covers or unmentioned in the provider's declaration.",
                extra={
                    "id": current.id,
                    "provider": connection.provider,
                    "expected": " ".join(grant.asked)[:SHOWN_SCOPES_AT_MOST],
                    "received": " ".join(grant.scopes)[:SHOWN_SCOPES_AT_MOST],
                },
            )

    async def _note(
        self, current: Elicitation, error: Exception, *, step: Step, hidden: Collection[str] = ()
    ) -> Exception:
        return await self.failures.note(
            error,
            step=step,
            id=current.id,
            owner=current.owner,
            client=self.clients.get(self._terms(current).provider),
            hidden=hidden,
        )

    async def revoke_grant(self, current: Elicitation, grant: Grant, code: DeviceCode) -> None:
        """Discard a grant, and revoke it at the provider if possible."""
        refused = self._connection(
            current,
            self._terms(current),
            grant,
            token_endpoint=code.token_endpoint,
            client_auth=code.client_auth,
        )
        await self._revoke(refused, owner=current.owner)

    async def revoke_unidentified(
        self, current: Elicitation, tokens: TokenSet, asked: StoredAttempt | DeviceCode
    ) -> None:
        """Revoke tokens whose account the provider did not identify.

        If the person or a team has connected an account there before, the tokens may be that
        account's. Nothing is revoked then.
        """
        grant = Grant(
            tokens=tokens,
            scopes=(),
            person=Person(id="", label=""),
            issuer="",
            tenant=asked.tenant if isinstance(asked, StoredAttempt) else None,
            dpop_key=asked.dpop_key,
        )
        unknown = self._connection(
            current,
            self._terms(current),
            grant,
            token_endpoint=asked.token_endpoint,
            client_auth=asked.client_auth,
        )
        try:
            await self._revoke(unknown, owner=current.owner)
        except Exception as error:  # noqa: BLE001 - the question has to be settled in any case
            about = {"provider": unknown.provider, "id": current.id}
            _log.warning("account.not_revoked", extra=about, exc_info=error)

    async def _revoke(self, refused: Connection, *, owner: str) -> None:
        """Revoke tokens that are not stored, unless `owner` or a team has connected the account.

        Many providers revoke all grants of an account together, so its other tokens would end too.
        """
        holders = {self.connections.holder(owner, one) for one in (None, *self.connections.teams)}
        for holder in holders:
            for one in await self.connections.all_of(holder):
                is_there = (one.provider, one.tenant) == (refused.provider, refused.tenant)
                if is_there and refused.person_id in ("", one.person_id):
                    return
        with suppress(Failed):
            client = self.clients.clients[refused.provider].for_tenant(refused.tenant)
            now = self.elicitations.clock()
            await self.outbound.run(revoke(client, refused, now=now), to=client)

    def _terms(self, elicitation: Elicitation) -> AccountTerms:
        return msgspec.convert(elicitation.request.terms, AccountTerms)

    async def _answer_alike(self, connection: Connection, *, owner: str) -> None:
        """Settle all waiting questions that this account answers, to ask the person only once.

        Questions that the person has already opened are skipped, because the person may want to
        connect another account there.
        """
        content: Json = {"account": connection.id}
        elicitations = self.elicitations
        for other in await elicitations.all(Elicitation, owner=owner, status=Status.PENDING):
            is_account = traits_of(other.kind).gives == "account"
            is_one = is_account and elicitations.clock() < other.expires_at
            asked = other.request
            if not is_one or not connection.is_shared(asked.tool, asked.calling_client):
                continue
            terms = self._terms(other)
            client = self.clients.get(terms.provider)
            if (
                client is not None
                and terms.team == connection.team
                and self.connections.key(client, server=other.request.server)
                == connection.lookup_key
                and connection.is_wanted(terms.account, terms.tenant)
                and self.connections.is_enough(
                    connection, terms.scopes, client, asks_again=terms.again
                )
            ):
                proof = ConnectedBefore(account=connection.id)
                await complete_elicitation(elicitations, other.id, content, proof)

    def _connection(
        self,
        current: Elicitation,
        terms: AccountTerms,
        grant: Grant,
        *,
        token_endpoint: str | None,
        client_auth: str,
    ) -> Connection:
        pepper = self.elicitations.owners.pepper
        client = self.clients.clients[terms.provider]
        key = self.connections.key(client, server=current.request.server)
        whose = (grant.person.id, *(() if grant.tenant is None else (grant.tenant,)))
        holder = self.connections.holder(current.owner, terms.team)
        tail, now = pepper.tag("account", key, *whose, size=18), self.elicitations.clock()
        client_of = current.request.calling_client
        connection = Connection(
            id=holder + tail,
            owner=holder,
            lookup_key=key,
            server=current.request.server,
            provider=terms.provider,
            person_id=grant.person.id,
            label=grant.person.label,
            name=grant.person.name,
            picture=grant.person.picture,
            tenant=grant.tenant,
            details=grant.details,
            connected_at=now,
            scopes=grant.scopes,
            withheld=client.provider.missing(grant.asked, granted=grant.scopes),
            tools=(current.request.tool,) if current.request.tool else (),
            titles=titled(current.request.tool, current.request.tool_title),
            access_token=grant.tokens.access_token,
            refresh_token=grant.tokens.refresh_token,
            dpop_key=grant.dpop_key,
            expires_at=grant.tokens.expires_at,
            refresh_expires_at=grant.tokens.refresh_expires_at,
            end_set_at=now,
            issued_at=now,
            token_endpoint=token_endpoint,
            client_auth=client_auth,
            issuer=grant.issuer,
            came_by=current.id,
            declared=terms.declared,
            clients=() if client_of is None else (seen(client_of),),
            team=terms.team,
            connected_by=None if terms.team is None else current.owner,
        )
        return planned(connection, now=now)


def why_not(
    terms: AccountTerms, person: Person, *, shows: Callable[[str], str] = lambda name: name
) -> str:
    """Return why this person's account is not the one asked for, without a period."""
    label, account = shows(person.label), shows(terms.account or "")
    # The terms have the id of the requested account. Another account has that name now.
    if terms.account is not None and person.is_called(terms.account):
        return f"The name {account} now belongs to another account than the one that was connected"
    return f"{label} was connected, but {account} was requested"


def _why(error: NotAccepted) -> str:
    return str(error).rstrip(".")
