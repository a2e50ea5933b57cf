"""Import of accounts that another product connected, from JSON lines or over the HTTP API.

Risks: an account is stored for another person, or an import replaces an account that the person
connected later. So each line names its person exactly, and an account that is connected here stays
as it is unless the operator says otherwise. The operator is trusted to say whose account it is. A
program is not: the server asks the provider which account the access token opens, and after the
first refresh, which account the refresh token renews. An imported account is shared with no tool:
the person allows each tool on the page first. No error repeats a value of the file, because lines
contain tokens.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from flows.elicitation.states import Json
from flows.errors import ElicitError, Failed, InvalidQuestion
from flows.oauth.connection import Connection, planned
from flows.oauth.id_token import owner_of_token
from flows.oauth.provider import NAME, SCOPE, Client
from flows.oauth.requests import ApiAccess, Unreachable
from flows.oauth.responses import ID_AT_MOST, LABEL_AT_MOST, TOKEN_BYTES_AT_MOST
from flows.shown import counted
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.oauth.clients import Clients
from webapp.oauth.connections import Connections
from webapp.records.values import Value

LINE_CHARACTERS_AT_MOST = 64 * 1024
MORE_CHARACTERS_AT_MOST = 16 * 1024  # of scopes and details, so that the row fits into the store
_Name = Annotated[str, Meta(min_length=1, max_length=ID_AT_MOST)]
_Token = Annotated[str, Meta(pattern=rf"^[\x21-\x7e]{{1,{TOKEN_BYTES_AT_MOST}}}$")]
Done = Literal["imported", "replaced", "unchanged", "kept", "refused"]
_REASONS: Final[Mapping[Done, str]] = {
    "kept": "This account is connected here already. --replace replaces it."
}


class ConnectedElsewhere(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account at a provider that another product connected, with its tokens.

    `account_id` is the provider's own id of the account, and `label` its name for people.
    """

    provider: _Name
    access_token: _Token
    account_id: _Name | None = None
    label: Annotated[str, Meta(min_length=1, max_length=LABEL_AT_MOST)] | None = None
    refresh_token: _Token | None = None
    expires_at: datetime | None = None
    refresh_expires_at: datetime | None = None
    scopes: tuple[str, ...] = ()
    tenant: str | None = None
    details: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.provider!r})"


class AccountLine(ConnectedElsewhere, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of an import: the account, and its person.

    The person is a `subject` of an `issuer`, or a `user` of the application.
    """

    # Required here. Struct resets the default of the class above.
    account_id: _Name  # pyright: ignore[reportGeneralTypeIssues]
    subject: _Name | None = None
    issuer: _Name | None = None
    user: _Name | None = None


_Line = TypeVar("_Line", bound=ConnectedElsewhere)


class LineRefused(ElicitError):
    """A line that cannot be imported. The message is a sentence without the line's values."""

    name = "LINE_REFUSED"
    http_status = 422


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedLine:
    """The result of a line. `why` is the reason if the line changed nothing."""

    number: int
    done: Done
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """An import for the server named `server`, which uses the accounts.

    `issuer` is used for lines that name no issuer. With `replaces`, an account of a line replaces
    the same account that is connected here. With `is_dry`, nothing is written.
    """

    server: str
    issuer: str | None = None
    replaces: bool = False
    is_dry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Importing:
    elicitations: Elicitations
    outbound: Outbound
    clients: Clients
    connections: Connections

    async def run(self, lines: Iterable[str], about: Import) -> Sequence[ImportedLine]:
        """Import each line separately: a refused line does not affect the other lines."""
        found = list[ImportedLine]()
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                done, why = await self._line(text, about)
            except (LineRefused, InvalidQuestion) as refused:
                done, why = "refused", str(refused)
            found.append(ImportedLine(number=number, done=done, why=why))
        return found

    async def _line(self, text: str, about: Import) -> tuple[Done, str | None]:
        line = _read(text)
        client, declared = self._client(line)
        owner = self._owner(line, about)
        new = self._connection(line, client, owner, server=about.server, declared=declared)
        done = await self._store(new, replaces=about.replaces, is_dry=about.is_dry)
        return done, _REASONS.get(done)

    async def one(self, line: ConnectedElsewhere, *, owner: str, server: str) -> Done:
        """Import an account for a program, after the provider said whose account it is.

        If the account is connected here already, change nothing.

        Raises:
            LineRefused: The account cannot be imported, or the token opens another account.
            InvalidQuestion: The tenant or the details lead to another host.
            Unreachable: The provider did not answer.
        """
        line = _valid(line)
        client, declared = self._client(line)
        # Checks the line before the token is sent to the provider.
        new = self._connection(line, client, owner, server=server, declared=declared)
        now = self.elicitations.clock()
        if line.expires_at is not None and line.expires_at <= now:
            raise LineRefused("The access token has expired: renew it, then send the new one.")
        try:
            person = await self.outbound.run(
                owner_of_token(client, access=ApiAccess(token=line.access_token, now=now)),
                to=client,
            )
        except Unreachable:
            raise
        except Failed as error:
            raise LineRefused(str(error)) from None
        if line.account_id not in (None, person.id):
            raise LineRefused("account_id: the access token opens another account.")
        proven = replace(line, account_id=person.id, label=person.label)
        new = self._connection(proven, client, owner, server=server, declared=declared)
        return await self._store(replace(new, is_unproven=new.refresh_token is not None))

    def _client(self, line: ConnectedElsewhere) -> tuple[Client, Json]:
        if NAME.fullmatch(line.provider) is None:
            raise LineRefused("provider: this is not the name of a provider.")
        try:
            client = self.clients.of(line.provider)
        except ElicitError as error:  # a provider of a tool's code, or one without credentials
            raise LineRefused(f"The provider cannot be used here: {error}") from None
        return client.for_tenant(line.tenant), self.clients.declared(client)

    async def _store(
        self, new: Connection, *, replaces: bool = False, is_dry: bool = False
    ) -> Done:
        done: Done = "imported"

        async def rows() -> list[Value]:
            nonlocal done
            stored = await self.elicitations.read(Connection, owner=new.owner, id=new.id)
            current = stored if stored is not None and stored.is_connected else None
            if current is None:
                done = "imported"
            elif _tokens(current) == _tokens(new):
                done = "unchanged"
            else:
                done = "replaced" if replaces else "kept"
            if is_dry or done in ("unchanged", "kept"):
                return []
            # The account that is in use stays in use: no imported account takes its place.
            is_in_use = stored is not None and stored.is_connected and stored.is_active
            return [*await self.connections.placed(new, is_named=not is_in_use)]

        await self.elicitations.write_rebuilt(rows)
        return done

    def _connection(
        self, line: ConnectedElsewhere, client: Client, owner: str, *, server: str, declared: Json
    ) -> Connection:
        now, provider = self.elicitations.clock(), client.provider
        if line.refresh_token is None and line.expires_at is not None and line.expires_at <= now:
            raise LineRefused("The access token has expired, and there is no refresh token.")
        if line.refresh_expires_at is not None and line.refresh_expires_at <= now:
            raise LineRefused("The refresh token has expired.")
        if not all(map(SCOPE.fullmatch, line.scopes)):
            raise LineRefused("scopes: a scope is not valid (RFC 6749, 3.3).")
        if provider.service_account:
            raise LineRefused("The provider has only this server's own account, and no person's.")
        if provider.dpop:
            raise LineRefused("The provider binds tokens to a key, so they cannot be imported.")
        if unknown := line.details.keys() - provider.keep.keys():
            names = counted(len(unknown), "name")
            raise LineRefused(f"details: keep of the provider lacks {names}.")
        provider.api_and_hosts(line.details)  # raises if they lead to another host
        account_id = line.account_id or ""
        key = self.connections.key(client, server=server)
        whose = (account_id, *(() if provider.tenant is None else (provider.tenant,)))
        tag = self.elicitations.owners.pepper.tag
        return planned(
            Connection(
                id=owner + tag("account", key, *whose, size=18),
                owner=owner,
                lookup_key=key,
                server=server,
                provider=provider.name,
                person_id=account_id,
                label=line.label or account_id[:LABEL_AT_MOST],
                tenant=provider.tenant,
                details=line.details,
                connected_at=now,
                issued_at=now,
                scopes=line.scopes,
                tools=(),
                access_token=line.access_token,
                refresh_token=line.refresh_token,
                expires_at=line.expires_at,
                refresh_expires_at=line.refresh_expires_at,
                end_set_at=now,
                declared=declared,
            ),
            now=now,
        )

    def _owner(self, line: AccountLine, about: Import) -> str:
        owners, issuer = self.elicitations.owners, line.issuer or about.issuer
        if (line.subject is None) == (line.user is None):
            raise LineRefused("Name the person: either subject (and issuer), or user.")
        if line.user is not None:
            return owners.tag_of_user(line.user, application=about.server)
        if line.subject is None or issuer is None:
            raise LineRefused("issuer: required, because the line names a subject.")
        return owners.tag(issuer=issuer, subject=line.subject)


def _read(text: str) -> AccountLine:
    if len(text) > LINE_CHARACTERS_AT_MOST:
        raise LineRefused(f"The line has more than {LINE_CHARACTERS_AT_MOST} characters.")
    try:
        line = msgspec.json.decode(text, type=AccountLine)
        json.loads(text, object_pairs_hook=_once)
    except msgspec.ValidationError as error:  # the error names members and types, and no values
        raise LineRefused(f"The line is not valid: {error}.") from None
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise LineRefused("The line is not a JSON object.") from None
    return _valid(line)


def _once(members: list[tuple[str, Json]]) -> None:
    """Check that a JSON object repeats no name: parsers differ in the value that they use."""
    names = [name for name, _ in members]
    if len(set(names)) < len(names):
        raise LineRefused("The line has two members of the same name. Write each member once.")


def _valid(line: _Line) -> _Line:
    """Check the rules that the types cannot express, and return the line with its times in UTC.

    Raises:
        LineRefused: The line breaks a rule.
    """
    if sum(map(len, (*line.scopes, *line.details.values()))) > MORE_CHARACTERS_AT_MOST:
        raise LineRefused(
            f"scopes, details: at most {MORE_CHARACTERS_AT_MOST} characters are allowed."
        )
    texts = (line.account_id or "", line.label or "", *line.details.values())
    if not all(text.isprintable() for text in texts):
        raise LineRefused("account_id, label and details must be printable.")
    ends, refresh_ends = _in_utc(line.expires_at), _in_utc(line.refresh_expires_at)
    return replace(line, expires_at=ends, refresh_expires_at=refresh_ends)


def _in_utc(at: datetime | None) -> datetime | None:
    if at is None:
        return None
    if at.tzinfo is None:
        raise LineRefused("A time needs a time zone, such as 2026-05-03T12:00:00Z.")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise LineRefused("A time must be in the years 1 to 9999 of UTC.") from None


def _tokens(connection: Connection) -> tuple[str, str | None]:
    return connection.access_token, connection.refresh_token
