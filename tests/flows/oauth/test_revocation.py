"""Revocation of tokens, which counts as done only if the provider confirms it."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from flows.errors import Failed
from flows.oauth.connection import Connection
from flows.oauth.id_token import unsigned_claims
from flows.oauth.provider import Client, Provider, Revocation
from flows.oauth.refresh import RefreshTokenGone, refresh, refreshed
from flows.oauth.revocation import revoke
from flows.providers import dropbox, github, google, notion, openid, slack
from tests.support import sandbox as sandbox_env
from tests.support.account_life import (
    ISSUER,
    METADATA,
    PLAIN,
    a_client,
    a_connection,
    basic,
    form_of,
    json_reply,
    led,
    ok,
    unanswered,
    values_of,
)
from tests.support.clock import NOON, Clock
from tests.support.oauth_flow import talked
from webapp.sandbox import new_sandbox

STANDARD = replace(PLAIN, revoke=Revocation(url=f"{ISSUER}/revoke"))


def revoked(
    provider: Provider, *replies: httpx.Response, connection: Connection | None = None
) -> tuple[bool, list[httpx.Request]]:
    talk = revoke(a_client(provider), connection or a_connection(provider), now=NOON)
    return talked(talk, *replies)


class TestStandardRevocation:
    def test_refresh_token_is_revoked_before_access_token(self) -> None:
        is_gone, (first, second) = revoked(
            STANDARD, httpx.Response(200), httpx.Response(200, content=b"")
        )
        assert is_gone
        assert first.url == second.url == f"{ISSUER}/revoke"
        assert first.headers["authorization"] == basic()
        assert form_of(first) == {"token": "old-refresh", "token_type_hint": "refresh_token"}
        assert form_of(second) == {"token": "old-key", "token_type_hint": "access_token"}

    def test_revocation_sends_client_credentials_as_at_the_exchange(self) -> None:
        provider = replace(openid("acme", ISSUER), revoke=STANDARD.revoke)
        connection = a_connection(provider, refresh_token=None, client_auth="post")
        _, (request,) = revoked(provider, httpx.Response(200), connection=connection)
        assert form_of(request)["client_secret"] == "our:secret/%"

    def test_access_token_without_refresh_token_is_revoked_alone(self) -> None:
        connection = a_connection(STANDARD, refresh_token=None)
        is_gone, requests = revoked(STANDARD, httpx.Response(200), connection=connection)
        assert is_gone
        assert len(requests) == 1

    def test_already_revoked_token_counts_as_revoked(self) -> None:
        gone = json_reply(400, error="invalid_token")
        assert revoked(STANDARD, gone, gone)[0]
        assert revoked(STANDARD, httpx.Response(200), httpx.Response(400))[0]

    def test_unsupported_token_type_does_not_count_as_revoked(self) -> None:
        cannot = json_reply(400, error="unsupported_token_type")
        assert not revoked(STANDARD, httpx.Response(200), cannot)[0]

    @pytest.mark.parametrize(
        "reply",
        [
            httpx.Response(400),
            json_reply(400, error="unsupported_token_type"),
            json_reply(401, error="invalid_client"),
            json_reply(503, error="invalid_token"),
            httpx.Response(302, headers={"location": "https://elsewhere.example"}),
            httpx.Response(404),
            httpx.Response(429),
            httpx.Response(500, content=b"\xff"),
        ],
    )
    def test_refused_revocation_fails_after_first_request(self, reply: httpx.Response) -> None:
        is_gone, requests = revoked(STANDARD, reply)
        assert not is_gone
        assert len(requests) == 1

    def test_unanswered_revocation_raises_failed(self) -> None:
        with pytest.raises(Failed, match="did not answer"):
            unanswered(revoke(a_client(STANDARD), a_connection(STANDARD), now=NOON))


class TestIssuer:
    def test_revocation_endpoint_is_read_from_metadata(self) -> None:
        acme = openid("acme", ISSUER)
        yes = httpx.Response(200)
        is_gone, requests = revoked(acme, ok(**METADATA), yes, yes)
        assert is_gone
        assert requests[1].url == f"{ISSUER}/revoke"

    @pytest.mark.parametrize(
        "address",
        [None, 7, "", "http://127.0.0.1/revoke", "http://login.example/revoke", f"{ISSUER}/r#x"],
    )
    def test_tokens_are_not_sent_to_unsafe_revocation_endpoint(self, address: Any) -> None:
        acme = openid("acme", ISSUER)
        is_gone, requests = revoked(acme, ok(**{**METADATA, "revocation_endpoint": address}))
        assert not is_gone
        assert len(requests) == 1

    def test_metadata_of_another_issuer_receives_no_tokens(self) -> None:
        foreign = ok(**{**METADATA, "issuer": "https://evil.example"})
        is_gone, requests = revoked(openid("acme", ISSUER), foreign)
        assert not is_gone
        assert len(requests) == 1

    def test_unanswered_metadata_request_raises_failed(self) -> None:
        acme = openid("acme", ISSUER)
        with pytest.raises(Failed, match="did not answer"):
            unanswered(revoke(a_client(acme), a_connection(acme), now=NOON))


class TestRevocationByProvider:
    def test_provider_without_revocation_receives_no_request(self) -> None:
        assert revoked(PLAIN) == (False, [])

    @pytest.mark.parametrize(
        ("status", "is_gone"), [(204, True), (404, True), (401, False), (422, False), (500, False)]
    )
    def test_github_token_is_deleted_with_client_credentials(
        self, status: int, is_gone: bool
    ) -> None:
        done, (request,) = revoked(github, httpx.Response(status))
        assert done is is_gone
        assert request.method == "DELETE"
        assert str(request.url) == "https://api.github.com/applications/our%20id/token"
        assert request.headers["authorization"] == basic()
        assert values_of(request) == {"access_token": "old-key"}

    @pytest.mark.parametrize(
        ("reply", "is_gone"),
        [
            (ok(ok=True, revoked=True), True),
            (ok(ok=True, revoked=False), False),
            (ok(ok=False, error="token_revoked"), True),
            (ok(ok=False, error="account_inactive"), True),
            (ok(ok=False, error="token_expired"), False),
            (ok(ok=False, error="invalid_auth"), False),
            (ok(ok=False), False),
            (httpx.Response(503), False),
        ],
    )
    def test_slack_revocation_uses_the_access_token_itself(
        self, reply: httpx.Response, is_gone: bool
    ) -> None:
        done, (request,) = revoked(slack, reply)
        assert done is is_gone
        assert str(request.url) == "https://slack.com/api/auth.revoke"
        assert request.headers["authorization"] == "Bearer old-key"
        assert request.content == b""

    @pytest.mark.parametrize(
        ("tag", "is_gone"), [("invalid_access_token", True), ("expired_access_token", False)]
    )
    def test_dropbox_error_tag_decides_whether_token_was_revoked(
        self, tag: str, is_gone: bool
    ) -> None:
        assert revoked(dropbox, json_reply(401, error={".tag": tag}))[0] is is_gone

    def test_notion_revocation_sends_json_and_version_header(self) -> None:
        done, (request,) = revoked(notion, ok(request_id="3c90c3cc"))
        assert done
        assert values_of(request) == {"token": "old-key"}
        assert request.headers["notion-version"]
        assert request.headers["authorization"] == basic()


async def a_life(provider: Provider, served: sandbox_env.Provider, **query: str | None) -> None:
    """Connect, refresh and revoke an account, and check that another refresh is refused."""
    sandbox = new_sandbox(url=sandbox_env.URL, serves=sandbox_env.MAIN)
    async with sandbox_env.person_at(sandbox, clock=Clock()) as person:
        reply = await person.connect(served, **query)
        reply = reply.get("authed_user", reply)
        client = Client(
            provider=provider,
            client_id=sandbox.client_id,
            client_secret=sandbox.client_secret,
        )
        who = unsigned_claims(reply.get("id_token", "")) or {}
        connection = a_connection(
            provider,
            person_id=who.get("sub", "1"),
            token_endpoint=f"{sandbox_env.URL}{served.token}",
            access_token=reply["access_token"],
            refresh_token=reply["refresh_token"],
            scopes=(),
        )
        renewed = await led(refresh(client, connection, now=NOON), person.http)
        after = refreshed(connection, renewed, now=NOON)
        assert after.access_token != connection.access_token
        assert after.refresh_token != connection.refresh_token
        assert after.expires_at is not None
        assert await led(revoke(client, after, now=NOON), person.http)
        with pytest.raises(RefreshTokenGone):
            await led(refresh(client, after, now=NOON), person.http)


class TestAccountLifeAtSandbox:
    async def test_github_account_is_connected_refreshed_and_revoked(self) -> None:
        await a_life(github.at(sandbox_env.URL), sandbox_env.GITHUB, scope="repo")

    async def test_google_account_is_connected_refreshed_and_revoked(self) -> None:
        await a_life(google.at(sandbox_env.URL), sandbox_env.OIDC, scope="openid email")

    async def test_slack_account_is_connected_refreshed_and_revoked(self) -> None:
        query = {"scope": None, "user_scope": "chat:write"}
        await a_life(slack.at(sandbox_env.URL), sandbox_env.SLACK, **query)
