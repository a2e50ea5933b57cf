"""The caller is identified once per request, and again if the request or its token changed."""

from typing import Any

from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

from webapp.http.exchange import Exchange, Message, Scope
from webapp.identity.identity import Caller, Sender, Subject
from webapp.mcp.callers import caller_of, sender_of


class Deciding:
    """A fake Identity that counts how often it identifies a caller."""

    def __init__(self) -> None:
        self.decisions = 0

    def caller(self, _: Scope | None, *, subject: Subject | None, client: str) -> Caller:
        self.decisions += 1
        if subject is None:
            return Caller(owner="local", client=client)
        name = subject.client_id or client
        is_verified = bool(subject.client_id)
        return Caller(owner=subject.subject, client=name, is_client_verified=is_verified)

    def sender(self, scope: Scope, *, subject: Subject | None) -> Sender:
        client = "" if subject is None else subject.client_id
        caller = self.caller(scope, subject=subject, client=client)
        return Sender(key="key", share="share", caller=caller)

    def as_on_our_pages(self, subject: Subject, _: Any) -> Subject:
        return subject


def request(user: AuthenticatedUser | None = None) -> Scope:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pass

    scope: Scope = {"type": "http", "headers": [(b"host", b"here")], "user": user}
    Exchange(scope, receive, send)
    return scope


def user_of(client: str) -> AuthenticatedUser:
    return AuthenticatedUser(AccessToken(token="x", client_id=client, scopes=[], subject="bob"))


def caller(identity: Any, scope: Scope | None) -> Caller:
    return caller_of(scope, identity=identity, issuer="server:x", client="its own name")


def test_caller_of_a_request_is_identified_once() -> None:
    identity: Any = Deciding()
    scope = request()
    assert sender_of(scope, identity=identity, issuer="server:x") is not None
    assert [caller(identity, {**scope, "path": "/mcp"}) for _ in range(3)] == [
        Caller(owner="local", client="its own name")
    ] * 3
    assert identity.decisions == 1


def test_verified_client_is_named_by_its_id_and_others_by_their_own_name() -> None:
    for client, expected in (("verified", "verified"), ("", "its own name")):
        identity: Any = Deciding()
        user = user_of(client)
        scope, known = request(user), auth_context_var.set(user)
        try:
            sender_of(scope, identity=identity, issuer="server:x")
            found = caller(identity, scope)
        finally:
            auth_context_var.reset(known)
        assert (found.owner, found.client) == ("bob", expected)
        assert found == Deciding().caller(
            scope, subject=Subject(issuer="x", subject="bob", client_id=client), client=expected
        )
        assert identity.decisions == 1


def test_caller_is_identified_again_if_the_request_or_its_token_changed() -> None:
    identity: Any = Deciding()
    scope = request()
    sender_of(scope, identity=identity, issuer="server:x")
    changed = {**scope, "headers": [*scope["headers"], (b"via", b"a relay")]}
    assert caller(identity, changed).owner == "local"
    assert caller(identity, None).owner == "local"
    assert identity.decisions == 3
    known = auth_context_var.set(user_of("other"))
    try:
        assert caller(identity, scope).owner == "bob"
    finally:
        auth_context_var.reset(known)
    another: Any = Deciding()
    assert caller(another, scope).owner == "local"
    assert (identity.decisions, another.decisions) == (4, 1)
