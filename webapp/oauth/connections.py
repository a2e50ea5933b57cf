"""Connections: stores and finds the accounts that people have connected.

Risks: one person's account is handed to another. So an account is found only by its owner, the
server that asked and the provider that it came from.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from flows.elicitation.states import Asked, Elicitation, Json
from flows.elicitation.tool_call import CallingClient
from flows.errors import Failed, InvalidQuestion, StoreUnavailable
from flows.oauth.access_token import Team
from flows.oauth.account import Content
from flows.oauth.authorization_code import Grant
from flows.oauth.connection import (
    Connection,
    allow,
    forbid,
    limit_to,
    put_aside,
    put_in_use,
    renewed,
    use,
    use_as_member,
)
from flows.oauth.dpop import new_key
from flows.oauth.provider import Client, Provider
from webapp.elicitations.question_kind import AskedBy
from webapp.elicitations.service import Elicitations
from webapp.oauth.clients import Clients, place_of
from webapp.records.ids import owner_of
from webapp.records.values import Value
from webapp.stores import Conflict

NOT_SHARED = "The account is no longer shared with this tool. Call again to ask for an account."
BEGUN_AT_MOST = 16  # calls recorded in one shared answer; the oldest are removed


class Connections:
    """The stored accounts. `teams` are the declared teams, in the order of the file.

    An account belongs to one person or to one team. Its owner is the person's tag or the team's. If
    several teams of a person share a provider, the first of them is used.
    """

    def __init__(
        self, *, elicitations: Elicitations, clients: Clients, teams: Sequence[Team] = ()
    ) -> None:
        self._elicitations = elicitations
        self._clients = clients
        self.teams = {team.name: team for team in teams}

    def team_for(self, provider: str, teams: Collection[str]) -> str | None:
        """Return the first of the person's teams that shares this provider, or None."""
        found = (one for one in self.teams.values() if one.name in teams)
        return next((one.name for one in found if provider in one.providers), None)

    def label_of_team(self, name: str | None) -> str | None:
        team = self.teams.get(name or "")
        return name if team is None else team.label

    def holder(self, owner: str, team: str | None) -> str:
        """Return the owner of an account that belongs to this team, or else to the person."""
        return owner if team is None else self._elicitations.owners.tag_of_team(team)

    def holder_of(self, id: str, *, owner: str, teams: Collection[str]) -> str:
        """Return the owner of the row: the person, one of their teams, or this server."""
        tags = [self.holder(owner, one) for one in teams if one in self.teams]
        tags.append(self._elicitations.owners.tag_of_service_accounts())
        return next((tag for tag in tags if tag == owner_of(id)), owner)

    def key(self, client: Client, *, server: str) -> str:
        """Return the key that all accounts of one server at one provider share."""
        # A sandbox's account has the same provider name but another origin.
        parts = (server, client.provider.name, place_of(client), client.client_id)
        return self._elicitations.owners.pepper.tag("connected", *parts, size=18)

    def client(self, connection: Connection) -> Client | None:
        """Return the OAuth client that this account came from; None if removed or replaced."""
        self._clients.learn(connection.declared)
        client = self._clients.get(connection.provider)
        if client is None or self.key(client, server=connection.server) != connection.lookup_key:
            return None
        with suppress(InvalidQuestion):  # the declaration has no such tenant any more
            return client.for_tenant(connection.tenant)
        return None

    def provider(self, connection: Connection) -> Provider | None:
        """Return the provider as it is declared now, or None."""
        self._clients.learn(connection.declared)
        return self._clients.provider(connection.provider)

    def reach(self, connection: Connection) -> tuple[str, tuple[str, ...]]:
        """Return the address of the account's API, and the hosts that get its access token.

        Raises:
            Failed: The account's provider is not configured, or its details lead to no declared
                host.
        """
        client = self.client(connection)
        try:
            if client is not None:
                return client.provider.api_and_hosts(connection.details)
        except InvalidQuestion as error:
            raise Failed(f"The account of {connection.label} cannot be used: {error}") from None
        raise Failed(
            f"The account of {connection.label} cannot be used: its provider is not configured."
        )

    async def read(self, owner: str, id: str) -> Connection | None:
        """Return the stored account, or None if it was disconnected."""
        found = await self._elicitations.read(Connection, owner=owner, id=id)
        return None if found is None or found.ended_at is not None else found

    async def own(self, client: Client, scopes: tuple[str, ...], *, server: str) -> Connection:
        """Return this server's own account at the provider, for exactly these scopes.

        A new account has no token yet. It is not in use for any lookup key, so `find` skips it.
        """
        owners, provider = self._elicitations.owners, client.provider
        owner, key = owners.tag_of_service_accounts(), self.key(client, server=server)
        what = (provider.tenant or "", *sorted(scopes))
        id = owner + owners.pepper.tag("service account", key, *what, size=18)
        found = await self.read(owner, id)
        if found is None:
            found = self._without_token(client, id=id, owner=owner, server=server)
            found = replace(
                found,
                person_id=client.client_id,
                tenant=provider.tenant,
                requested=scopes,
                dpop_key=new_key() if provider.dpop else None,
                expires_at=found.connected_at,
            )
            with suppress(Conflict):  # another process was first; both rows are equal
                await self._elicitations.write(found)
            found = await self.read(owner, id) or found
        return found

    def new_exchanged(self, client: Client, scopes: Sequence[str], *, by: AskedBy) -> Connection:
        """Return the row of an account for the asker's own access token, without a token yet."""
        key, tag = self.key(client, server=by.server), self._elicitations.owners.pepper.tag
        id = by.owner + tag("exchanged account", key, *sorted(scopes), size=18)
        new = self._without_token(client, id=id, owner=by.owner, server=by.server)
        return replace(new, is_exchanged=True)

    def _without_token(self, client: Client, *, id: str, owner: str, server: str) -> Connection:
        """Return a new account that has no token yet, and that `find` skips."""
        return Connection(
            id=id,
            owner=owner,
            person_id="",
            lookup_key=self.key(client, server=server),
            server=server,
            provider=client.provider.name,
            label=client.provider.label,
            connected_at=self._elicitations.clock(),
            scopes=(),
            tools=(),
            access_token="",
            is_active=False,
            declared=self._clients.declared(client),
        )

    async def must_ask_for_exchanged(self, key: str, by: AskedBy) -> bool:
        """Return True if the person has ended an exchanged account, or its use by this tool.

        A tool gets a separate account for each set of scopes, so the check reads all of them.
        """
        rows = await self._elicitations.all(Connection, owner=by.owner)
        found = [one for one in rows if one.is_exchanged and one.lookup_key == key]
        return any(one.needs_new_consent(by.tool, by.client) for one in found)

    async def store_exchanged(self, new: Connection, grant: Grant) -> Connection | None:
        """Store the tokens of the account, unless the person disconnected it in the meantime."""
        now, tokens = self._elicitations.clock(), grant.tokens

        async def rows() -> list[Value]:
            same = await self._elicitations.read(Connection, owner=new.owner, id=new.id)
            if same is not None and (same.ended_at is not None or same.is_ending):
                return []
            row = replace(
                new,
                person_id=grant.person.id,
                label=grant.person.label,
                name=grant.person.name,
                picture=grant.person.picture,
                details=grant.details,
                scopes=grant.scopes,
                access_token=tokens.access_token,
                expires_at=tokens.expires_at,
                issued_at=now,
                issuer=grant.issuer,
            )
            return [row if same is None else renewed(row, same)]

        await self._elicitations.write_rebuilt(rows)
        return await self.read(new.owner, new.id)

    async def share_exchanged(
        self, found: Connection, tool: str, client: CallingClient | None
    ) -> Connection | None:
        """Share the exchanged account with the tool, and return the account.

        Return None if the person has to be asked.
        """

        def shared(now: Connection) -> Connection:
            return now if now.needs_new_consent(tool, client) else allow(now, tool, client)

        if tool not in found.tools:
            await self._change(found.owner, found.id, shared)
        current = await self.read(found.owner, found.id)
        return current if current is not None and current.is_shared(tool, client) else None

    async def received_account(self, id: str, by: AskedBy) -> Connection:
        """Return the account that the tool already received.

        Raises Failed if the account was disconnected or is no longer shared with the tool.
        """
        found = await self.read(self.holder_of(id, owner=by.owner, teams=by.teams), id)
        if found is None:
            raise Failed(
                "The account was disconnected in the meantime. Call again to ask for an account."
            )
        if not found.is_shared(by.tool, by.client):
            raise Failed(NOT_SHARED)
        return found

    async def seen_by(
        self, owner: str, teams: Collection[str], *, server: str
    ) -> tuple[Connection, ...]:
        """Return the person's accounts, those of their teams, and those they connected for a team.

        A person who has left a team still sees the accounts that they connected for it. Other
        accounts of a team are returned only for this `server`: another server with the same store
        can have a team of the same name with other members.
        """
        found = [*await self.all_of(owner)]
        for name in self.teams:
            rows = await self.all_of(self.holder(owner, name))
            is_member = name in teams
            found += [
                one
                for one in rows
                if (is_member and one.server == server) or one.connected_by == owner
            ]
        return tuple(found)

    async def all_of(self, owner: str) -> tuple[Connection, ...]:
        """Return all accounts of this owner, also lapsed ones."""
        rows = await self._elicitations.all(Connection, owner=owner)
        found = [one for one in rows if one.ended_at is None]
        found.sort(key=lambda one: (one.server, one.provider, not one.is_active, one.label, one.id))
        return tuple(found)

    async def of_key(self, owner: str, key: str) -> tuple[Connection, ...]:
        """Return all accounts of one server at one provider, the one in use first."""
        return tuple([one for one in await self.all_of(owner) if one.lookup_key == key])

    async def find(
        self, owner: str, key: str, *, account: str | None, tenant: str | None = None
    ) -> Connection | None:
        """Return the account in use, or None. With `account`, return the account of that name.

        With `tenant`, return an account of that tenant. An account that is found by its name or
        tenant need not be in use.
        """
        held = await self._elicitations.holder(Connection, owner=owner, key=key)
        is_any = account is None and tenant is None
        if is_any or (held is not None and held.is_wanted(account, tenant)):
            return held
        connections = await self.of_key(owner, key)
        return next((one for one in connections if one.is_wanted(account, tenant)), None)

    def is_enough(
        self,
        connection: Connection,
        scopes: Sequence[str],
        client: Client,
        *,
        asks_again: bool = True,
    ) -> bool:
        """Return True if the token is valid or renewable, and grants all these scopes.

        Unless `asks_again`, scopes that the person was asked for before and did not grant are not
        required.
        """
        if not connection.is_usable(now=self._elicitations.clock()):
            return False
        asks = client.provider.scopes_to_request(tuple(scopes))
        missing = client.provider.missing(asks, granted=connection.scopes)
        return set(missing) <= (set() if asks_again else {*connection.withheld})

    def content(self, connection: Connection, *, scopes: Sequence[str] = ()) -> Json:
        """Return the account data that a tool receives, including the access token.

        `scopes` are those that the tool asks for.
        """
        provider = self._clients.clients[connection.provider].provider
        api, api_hosts = self.reach(connection)
        content: Json = msgspec.to_builtins(
            Content(
                provider=connection.provider,
                connection=connection.id,
                id=connection.person_id,
                label=connection.label,
                name=connection.name,
                picture=connection.picture,
                scopes=connection.scopes,
                missing=provider.missing(tuple(scopes), granted=connection.scopes),
                access_token=connection.access_token,
                dpop_key=connection.dpop_key,
                carrier=provider.carrier,
                tenant=connection.tenant,
                details=connection.details,
                team=connection.team,
                api=api,
                api_hosts=api_hosts,
            )
        )
        return content

    async def same_row(self, new: Connection, *, own_id: str) -> Connection:
        """Return `new` with the id of the row that already stores this account, if any.

        If the person's id has several members, earlier versions stored the account under the last
        member (`own_id`).
        """
        connected = await self.of_key(new.owner, new.lookup_key)
        by_person = {one.person_id: one for one in connected if not one.is_exchanged}
        row = by_person.get(new.person_id) or by_person.get(own_id)
        return new if row is None else replace(new, id=row.id)

    async def placed(self, new: Connection, *, is_named: bool) -> list[Connection]:
        """Return the rows that connect a new account: the replaced account, if any, then the new.

        Nothing is written. An account that was asked for by name replaces no other.
        """
        holder = await self._elicitations.holder(Connection, owner=new.owner, key=new.lookup_key)
        same = await self._elicitations.read(Connection, owner=new.owner, id=new.id)
        if same is not None:
            new = renewed(new, same)
        if holder is not None and holder.id != new.id:
            if is_named:
                return [replace(new, is_active=False)]
            return [
                replace(holder, is_active=False),
                put_in_use(replace(new, replaced_id=holder.id)),
            ]
        return [put_in_use(new)]

    async def chosen(self, connection: Connection, asked: Asked, *, is_named: bool) -> list[Value]:
        """Return the rows that allow the tool and its client to use the account.

        Nothing is written. The account is also put in use, unless it was asked for by name.
        """
        current = await self.read(connection.owner, connection.id)
        if current is None:
            return []
        allowed = allow(current, asked.tool, asked.calling_client, title=asked.tool_title)
        return [allowed] if is_named else await self._in_use(allowed)

    async def unshare(self, owner: str, id: str, tool: str) -> None:
        """Stop sharing the account with the tool. The tool has to ask for the account again."""
        await self._change(owner, id, lambda current: forbid(current, tool))

    async def limit_to(self, owner: str, id: str, clients: Collection[str] | None) -> None:
        """Let only clients with these keys use the account (None: any client).

        The tools of other clients have to ask for the account.
        """
        await self._change(owner, id, lambda current: limit_to(current, clients))

    async def _change(
        self, owner: str, id: str, change: Callable[[Connection], Connection]
    ) -> None:
        async def changed() -> list[Value]:
            current = await self.read(owner, id)
            after = None if current is None else change(current)
            return [] if after is None or after == current else [after]

        await self._elicitations.write_rebuilt(changed)

    async def switch(self, owner: str, id: str) -> Connection | None:
        """Put the account in use. Return the account, or None if it does not exist."""

        async def switched() -> list[Value]:
            current = await self.read(owner, id)
            if current is None or current.is_active:
                return []
            now, connections = (
                self._elicitations.clock(),
                await self.of_key(owner, current.lookup_key),
            )
            # Put all other accounts aside, in use or not: a question may have been answered with
            # one of them and not be delivered yet.
            aside = [put_aside(one, now=now) for one in connections if one.id != id]
            return [*aside, put_in_use(current)]

        await self._elicitations.write_rebuilt(switched)
        return await self.read(owner, id)

    async def note_use(
        self,
        connection: Connection,
        tool: str,
        client: CallingClient | None,
        *,
        owner: str,
        name: str | None = None,
    ) -> None:
        """Record the use, at most once a minute or for a new client. Ignore a failed write.

        If the account belongs to a team, record the member too: `owner` is the member's tag, and
        `name` is the name that people see.
        """
        now = self._elicitations.clock()
        noted = use(connection, tool, client, now=now)
        if connection.team is not None:
            noted = use_as_member(noted, owner, name or "", now=now)
        if noted != connection:
            with suppress(Conflict, StoreUnavailable):
                await self._elicitations.write(noted)

    async def note_begun(self, claimed: Elicitation, given: Connection) -> Elicitation:
        """Record that the call receives this account, unless it already received another account.

        Return the changed question. The record is stored before the tool gets the account, so that
        after a crash the next requests of the call get the same account.
        """

        def note(current: Elicitation) -> Elicitation:
            content, claim = current.content, claimed.take
            if claim is None or not isinstance(content, Mapping):
                return current  # the answer was used up in the meantime
            begun = _begun(content)
            if claim.run in begun:
                return current
            by_run = dict([*begun.items(), (claim.run, given.id)][-BEGUN_AT_MOST:])
            return replace(current, content={**content, "begun": by_run})

        noted = await self._elicitations.change(claimed.id, note)
        return replace(noted, take=claimed.take)

    async def _in_use(self, connection: Connection) -> list[Value]:
        held = await self._elicitations.holder(
            Connection, owner=connection.owner, key=connection.lookup_key
        )
        if held is None or held.id == connection.id:
            return [put_in_use(connection)]
        return [replace(held, is_active=False), put_in_use(connection)]


def begun_with(claimed: Elicitation) -> str | None:
    """Return the id of the account that the tool already received in this run, or None."""
    account = None if claimed.take is None else _begun(claimed.content).get(claimed.take.run)
    return None if account is None else str(account)


def _begun(content: Json) -> Mapping[str, Json]:
    begun = content.get("begun") if isinstance(content, Mapping) else None
    return begun if isinstance(begun, Mapping) else {}
