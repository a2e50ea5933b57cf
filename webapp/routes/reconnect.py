"""The question that reconnects an account. The account's person asks it on the page, not a tool.

Risks: reconnecting shares an account with another tool, or connects another person's account. The
question names no tool, so the account keeps its tools. The question requires the id that the
account's person has at the provider, so no other account can answer it. Pressing again while the
question is open returns the same question.
"""

from datetime import timedelta

from msgspec import convert, to_builtins
from msgspec.structs import replace

from flows.elicitation import states
from flows.elicitation.states import Asked, Elicitation, Status
from flows.oauth.authorization_code import AccountTerms
from flows.oauth.connection import Connection
from flows.oauth.provider import SCOPE
from flows.question import digest_of
from flows.requests import AccountRequest
from webapp.elicitations.question_kind import AskedBy
from webapp.service import Service

OPEN_FOR = timedelta(minutes=10)


async def reconnect(
    service: Service, connection: Connection, *, is_for_user: bool = False
) -> Elicitation | None:
    """Return the open question, or None if the account was disconnected or has no client here.

    `is_for_user`: the person is a user of the application.
    """
    elicitations = service.elicitations
    client = service.kinds.accounts.connections.client(connection)
    if client is None or connection.ended_at is not None:
        return None
    provider = service.kinds.accounts.connections.provider(connection)
    assert provider is not None  # there is a client
    request = AccountRequest(
        provider=provider,
        tenant=connection.tenant,
        scopes=tuple(scope for scope in connection.scopes if SCOPE.fullmatch(scope)),
        account=connection.label,
    )
    join = elicitations.owners.pepper.tag("join", "reconnect", connection.id, size=18)

    async def asked_afresh() -> list[Elicitation]:
        held = await elicitations.find(owner=connection.owner, join=join)
        if held is not None and not held.status.is_final:
            if elicitations.clock() < held.expires_at:
                return []
            held = await elicitations.end(held, Status.EXPIRED)
        new = await _question(service, connection, request, join=join)
        new = replace(new, is_for_user=is_for_user)
        return [new] if held is None else [states.let_go(held), new]

    written = await elicitations.write_afresh(asked_afresh)
    if written:
        return await elicitations.get(written[-1].id)
    return await elicitations.find(owner=connection.owner, join=join)


async def _question(
    service: Service, connection: Connection, request: AccountRequest, *, join: str
) -> Elicitation:
    accounts, now = service.kinds.accounts, service.clock()
    id, expires_at = service.elicitations.new_id(connection.owner), now + OPEN_FOR
    asked = await accounts.asked(
        request,
        Asked(
            server=connection.server,
            tool="",
            client=None,
            message=request.message,
            digest=digest_of(request.kind, accounts.facts(request)),
        ),
        link=service.links.for_author(elicitation_id=id, expires_at=expires_at, now=now),
        by=AskedBy(owner=connection.owner, server=connection.server, tool=""),
    )
    terms = replace(
        convert(asked.terms, AccountTerms), person_id=connection.person_id, also=connection.scopes
    )
    return Elicitation(
        id=id,
        owner=connection.owner,
        kind=request.kind,
        asked=replace(asked, terms=to_builtins(terms)),
        join=join,
        created_at=now,
        expires_at=expires_at,
    )
