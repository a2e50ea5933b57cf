"""Accounts (the kind `oauth`): what is asked, the exchange, and what is kept of it.

What could go wrong: one person's account handed to another. So an account is found only by its
owner, the served server and the very provider that it came from, and a tool that did not ask for
it asks the person once. An account is not used up, so nothing of it is wiped on delivery.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from flows.account import Content
from flows.attempts import come_back
from flows.connection import Connection, allow, renewed
from flows.elicitation import Asked, Completion, Elicitation, Json, Status
from flows.errors import Denied, Failed, NotAccepted, NotConfigured, NotPossible
from flows.oauth import Client, Grant, Kept, OauthFlow, Terms
from flows.provider import Provider
from flows.question import Link
from flows.requests import AccountRequest
from webapp.acceptance import accept
from webapp.elicitations import Elicitations
from webapp.kind import AskedBy
from webapp.outbound import Outbound
from webapp.rows import Value

_log = logging.getLogger(__name__)


class Accounts:
    """Implements webapp.kind.Kind for requests of type AccountRequest.

    `credentials` are our client ids and secrets by the provider's name.
    """

    holds_open = False
    outlives_errors = False

    def __init__(
        self,
        *,
        elicitations: Elicitations,
        outbound: Outbound,
        providers: Mapping[str, Provider],
        credentials: Mapping[str, tuple[str, str]],
    ) -> None:
        self._elicitations = elicitations
        self._outbound = outbound
        self._providers = providers
        self._credentials = credentials
        self._clients: dict[str, Client] = {}
        for provider in providers.values():
            with suppress(NotConfigured):
                self._register(provider)
        self.flow = OauthFlow(self._clients)

    def facts(self, request: AccountRequest) -> Json:
        client = self._client(request)
        return {**_mapping(request.facts()), "client": client.client_id, "at": _place(client)}

    async def known(self, request: AccountRequest, by: AskedBy) -> Json | None:
        found = await self._usable(request.scopes, request.account, self._client(request), by)
        return self._content(found) if found is not None and by.tool in found.tools else None

    async def asked(
        self, request: AccountRequest, asked: Asked, *, link: Link, by: AskedBy
    ) -> Asked:
        """With all that the account in its place may do: a narrower one would not take it."""
        client = self._client(request)
        key = self._key(client, server=by.server)
        held = await self._elicitations.holder(Connection, owner=by.owner, key=key)
        is_same = held is not None and request.account in (None, held.person_id, held.label)
        also = held.scopes if held is not None and is_same else ()
        terms = Terms(
            provider=client.provider.name,
            client_id=client.client_id,
            scopes=tuple(dict.fromkeys((*request.scopes, *also))),
            account=request.account,
            reason=request.reason,
        )
        return replace(asked, origins=(_place(client),), terms=msgspec.to_builtins(terms))

    async def answer(self, taken: Elicitation) -> Json:
        id = str(_mapping(taken.content).get("account"))
        found = await self._elicitations.read(Connection, owner=taken.owner, id=id)
        if found is None:
            raise Failed("The account was disconnected meanwhile.", elicitation_id=taken.id)
        return self._content(found)

    async def used_up(self, delivered: Elicitation) -> list[Value]:
        return []

    def return_path(self, elicitation: Elicitation) -> str:
        return f"/callback/{self.terms(elicitation).provider}"

    def terms(self, elicitation: Elicitation) -> Terms:
        return msgspec.convert(elicitation.asked.terms, Terms)

    def client_for(self, elicitation: Elicitation) -> Client | None:
        """Ours at the provider that it is about; None if that is not configured any more."""
        return self._clients.get(self.terms(elicitation).provider)

    async def connected(self, elicitation: Elicitation) -> Connection | None:
        """What it led to; also when it was delivered."""
        id = _mapping(elicitation.content).get("account")
        if isinstance(id, str):
            return await self._elicitations.read(Connection, owner=elicitation.owner, id=id)
        found, settled_at = await self.offered(elicitation), elicitation.settled_at
        if found is None or settled_at is None or found.connected_at > settled_at:
            return None  # another one by now, perhaps another person's
        return found

    async def offered(self, elicitation: Elicitation) -> Connection | None:
        """What another tool of the server has connected, and would do for this question."""
        terms = self.terms(elicitation)
        client = self._clients.get(terms.provider)
        if client is None:
            return None
        asked = elicitation.asked
        by = AskedBy(owner=elicitation.owner, server=asked.server, tool=asked.tool)
        return await self._usable(terms.scopes, terms.account, client, by)

    async def share(self, elicitation: Elicitation, *, account: str) -> None:
        """The person allows the tool that asks to use what is connected already.

        `account` is the end of the id of what was shown. Does nothing if that is not there any
        more, or the question is over: a press here is no provider's proof, so it is never late.
        """
        offered = await self.offered(elicitation)
        is_shown = offered is not None and offered.id == elicitation.owner + account
        if not is_shown or self._elicitations.clock() >= elicitation.expires_at:
            return
        assert offered is not None

        async def also(_: Elicitation) -> Sequence[Value]:
            current = await self._elicitations.read(Connection, owner=offered.owner, id=offered.id)
            return [] if current is None else [allow(current, elicitation.asked.tool)]

        with suppress(NotPossible):
            content: Json = {"account": offered.id}
            await self._elicitations.settle(
                elicitation.id, Status.ACCEPTED, content=content, also=also
            )

    async def connect(self, elicitation: Elicitation, *, state: str, code: str) -> None:
        """Exchange the code, once, and settle; goes on to its end when cancelled.

        Raises NotPossible if the state was used.
        """
        await self._elicitations.whole(self._connect(elicitation, state=state, code=code))

    async def refuse(self, elicitation: Elicitation, error: NotAccepted) -> None:
        """The provider answered no, or that it cannot."""
        status = Status.DENIED if isinstance(error, Denied) else Status.FAILED
        with suppress(NotPossible):
            await self._elicitations.settle(elicitation.id, status, why=_why(error))

    async def _connect(self, elicitation: Elicitation, *, state: str, code: str) -> None:
        now = self._elicitations.clock()
        exchanging = await self._elicitations.change(
            elicitation.id, lambda e: come_back(e, state=state, now=now)
        )
        await self._exchange(exchanging, code)

    async def _exchange(self, current: Elicitation, code: str) -> None:
        talk = self.flow.finish(current, code=code, now=self._elicitations.clock())
        try:
            grant = await self._outbound.run(talk)
        except (Denied, Failed) as error:
            await self.refuse(current, error)
            return
        except Exception:  # noqa: BLE001 - the edge of a task
            _log.exception("exchange.failed", extra={"id": current.id})
            await self.refuse(current, Failed("The provider's answer could not be understood."))
            return
        wanted = self.terms(current).account
        if wanted not in (None, grant.person.id, grant.person.label):
            why = f"{grant.person.label} was connected, and {wanted} was asked for"
            await self.refuse(current, Failed(why))
            return
        connection = self._connection(current, grant)

        async def also(_: Elicitation) -> Sequence[Value]:
            return await self._to_write(connection)

        done = await accept(self._elicitations, current, {"account": connection.id}, also=also)
        if done in (Completion.ALREADY_SETTLED, Completion.UNKNOWN):
            # Too late for the question; the account is there all the same, for the next one.
            await self._elicitations.write_afresh(lambda: self._to_write(connection))

    def _connection(self, current: Elicitation, grant: Grant) -> Connection:
        terms = self.terms(current)
        assert current.attempt is not None
        kept = msgspec.convert(current.attempt.kept, Kept)
        pepper = self._elicitations.owners.pepper
        key = self._key(self._clients[terms.provider], server=current.asked.server)
        return Connection(
            id=current.owner + pepper.tag("account", key, grant.person.id, size=18),
            owner=current.owner,
            key=key,
            server=current.asked.server,
            provider=terms.provider,
            person_id=grant.person.id,
            label=grant.person.label,
            name=grant.person.name,
            picture=grant.person.picture,
            connected_at=self._elicitations.clock(),
            scopes=grant.scopes,
            tools=(current.asked.tool,),
            access_token=grant.tokens.access_token,
            refresh_token=grant.tokens.refresh_token,
            expires_at=grant.tokens.expires_at,
            issued_at=self._elicitations.clock(),
            token=kept.token,
            client_auth=kept.client_auth,
            issuer=grant.issuer,
        )

    async def _to_write(self, new: Connection) -> list[Value]:
        """The new one, and the one that it takes the place of."""
        holder = await self._elicitations.holder(Connection, owner=new.owner, key=new.key)
        same = await self._elicitations.read(Connection, owner=new.owner, id=new.id)
        written: list[Value] = [new if same is None else renewed(new, same)]
        if holder is not None and holder.id != new.id:
            written.insert(0, replace(holder, holds_key=False))
        return written

    async def _usable(
        self, scopes: Sequence[str], account: str | None, client: Client, by: AskedBy
    ) -> Connection | None:
        key = self._key(client, server=by.server)
        found = await self._elicitations.holder(Connection, owner=by.owner, key=key)
        now = self._elicitations.clock()
        if found is None or not found.is_usable(account=account, now=now):
            return None
        asks = client.provider.asks(tuple(scopes))
        return None if client.provider.missing(asks, granted=found.scopes) else found

    def _key(self, client: Client, *, server: str) -> str:
        # A sandbox's account of the same provider name lives at another place.
        parts = (server, client.provider.name, _place(client), client.client_id)
        return self._elicitations.owners.pepper.tag("connected", *parts, size=18)

    def _content(self, found: Connection) -> Json:
        provider = self._clients[found.provider].provider
        connected: Json = msgspec.to_builtins(
            Content(
                provider=found.provider,
                id=found.person_id,
                label=found.label,
                name=found.name,
                picture=found.picture,
                scopes=found.scopes,
                access_token=found.access_token,
                api=provider.api,
                api_hosts=provider.api_hosts,
            )
        )
        return connected

    def _client(self, request: AccountRequest) -> Client:
        if isinstance(request.provider, Provider):
            known = self._providers.get(request.name, request.provider)
            return self._register(known)
        if request.name not in self._providers:
            raise NotConfigured(f"[providers.{request.name}] in elicit.toml")
        return self._register(self._providers[request.name])

    def _register(self, provider: Provider) -> Client:
        known = self._clients.get(provider.name)
        if known is not None and known.provider == provider:
            return known
        credentials = self._credentials.get(provider.name)
        if credentials is None:
            name = provider.name.upper()
            raise NotConfigured(f"ELICIT_{name}_CLIENT_ID", f"ELICIT_{name}_CLIENT_SECRET")
        client = Client(provider=provider, client_id=credentials[0], client_secret=credentials[1])
        if known is None:
            self._clients[provider.name] = client
            return client
        raise Failed(f"Two providers are declared by the name {provider.name!r}.")


def _place(client: Client) -> str:
    """The origin that the person is sent to, or by which it is found."""
    parts = urlsplit(client.provider.authorize or client.provider.issuer or "")
    return f"{parts.scheme}://{parts.netloc}"


def _why(error: NotAccepted) -> str:
    return str(error).rstrip(".")


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}
