"""Token refresh: one request, old tokens stored until new ones arrive, ended tokens noticed."""

import contextlib
import json
from base64 import urlsafe_b64encode
from dataclasses import replace
from datetime import timedelta

import httpx
import msgspec
import pytest

from flows.errors import Failed
from flows.oauth.connection import Connection
from flows.oauth.provider import Provider
from flows.oauth.refresh import RefreshTokenGone, Renewed, needs_refresh, refresh, refreshed
from flows.providers import github, microsoft, openid, slack
from tests.support.account_life import (
    ISSUER,
    METADATA,
    PLAIN,
    a_client,
    a_connection,
    basic,
    form_of,
    json_reply,
    ok,
    unanswered,
    values_of,
)
from tests.support.clock import NOON
from tests.support.oauth_flow import talked

NEW = {"access_token": "new-key", "token_type": "bearer", "expires_in": 3600}


def renewed(
    *replies: httpx.Response, provider: Provider = PLAIN, connection: Connection | None = None
) -> tuple[Renewed, list[httpx.Request]]:
    connection = connection or a_connection(provider)
    return talked(refresh(a_client(provider), connection, now=NOON), *replies)


class TestDueTime:
    @pytest.mark.parametrize(
        ("life", "margin"),
        [
            (timedelta(hours=8), timedelta(seconds=60)),
            (timedelta(minutes=10), timedelta(seconds=60)),
            (timedelta(minutes=5), timedelta(seconds=30)),
            (timedelta(seconds=10), timedelta(seconds=1)),
        ],
    )
    def test_refresh_is_due_a_minute_or_a_tenth_of_lifetime_before_expiry(
        self, life: timedelta, margin: timedelta
    ) -> None:
        connection = a_connection(issued_at=NOON, expires_at=NOON + life)
        due = NOON + life - margin
        assert not needs_refresh(connection, now=NOON)
        assert not needs_refresh(connection, now=due - timedelta(microseconds=1))
        assert needs_refresh(connection, now=due)
        assert needs_refresh(connection, now=NOON + life)

    def test_refresh_time_counts_from_connection_if_issue_time_is_unknown(self) -> None:
        connection = a_connection(
            issued_at=None, connected_at=NOON, expires_at=NOON + timedelta(minutes=5)
        )
        assert not needs_refresh(connection, now=NOON + timedelta(minutes=4, seconds=29))
        assert needs_refresh(connection, now=NOON + timedelta(minutes=4, seconds=30))

    def test_token_without_expiry_or_refresh_token_is_never_due(self) -> None:
        assert not needs_refresh(a_connection(expires_at=None), now=NOON)
        assert not needs_refresh(a_connection(refresh_token=None), now=NOON)


class TestRefreshRequest:
    def test_refresh_token_goes_to_declared_endpoint_and_to_no_earlier_one(self) -> None:
        earlier = a_connection(token_endpoint="https://earlier.example/token")
        _, (request,) = renewed(ok(**NEW), connection=earlier)
        assert request.url == f"{ISSUER}/token"

    def test_refresh_request_goes_to_token_endpoint_of_exchange(self) -> None:
        acme = openid("acme", ISSUER)  # the issuer's metadata chose `post`
        held = a_connection(acme, token_endpoint=f"{ISSUER}/found/token", client_auth="post")
        _, (request,) = renewed(ok(**NEW), provider=acme, connection=held)
        assert (request.method, str(request.url)) == ("POST", f"{ISSUER}/found/token")
        assert form_of(request) == {
            "grant_type": "refresh_token",
            "refresh_token": "old-refresh",
            "client_id": "our id",
            "client_secret": "our:secret/%",
        }
        assert request.headers["content-type"] == "application/x-www-form-urlencoded"
        assert request.headers["accept"] == "application/json"
        assert "authorization" not in request.headers

    def test_client_credentials_are_sent_as_at_the_exchange(self) -> None:
        _, (request,) = renewed(ok(**NEW))
        assert request.headers["authorization"] == basic()
        assert "client_secret" not in form_of(request)

    def test_declared_refresh_endpoint_is_used(self) -> None:
        elsewhere = replace(PLAIN, refresh=f"{ISSUER}/renew", body="json")
        _, (request,) = renewed(ok(**NEW), provider=elsewhere)
        assert request.url == f"{ISSUER}/renew"
        assert values_of(request)["grant_type"] == "refresh_token"

    def test_account_stored_without_endpoint_uses_declared_endpoint(self) -> None:
        _, (request,) = renewed(
            ok(**NEW), connection=a_connection(token_endpoint=None, client_auth=None)
        )
        assert request.url == f"{ISSUER}/token"
        assert request.headers["authorization"] == basic()

    def test_account_stored_without_endpoint_uses_issuer_metadata(self) -> None:
        acme = openid("acme", ISSUER)
        post = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
        _, (asked, request) = renewed(
            ok(**METADATA, **post),
            ok(**NEW),
            provider=acme,
            connection=a_connection(acme, token_endpoint=None, client_auth=None),
        )
        assert asked.url == f"{ISSUER}/.well-known/openid-configuration"
        assert request.url == f"{ISSUER}/token"
        assert form_of(request)["client_id"] == "our id"


class TestRefreshReply:
    def test_new_tokens_replace_old_tokens(self) -> None:
        connection = a_connection()
        new, _ = renewed(ok(**NEW, refresh_token="new-refresh"))
        after = refreshed(connection, new, now=NOON)
        assert (after.access_token, after.refresh_token) == ("new-key", "new-refresh")
        assert after.expires_at == NOON + timedelta(hours=1)
        assert after.issued_at == NOON
        assert after.connected_at == connection.connected_at
        assert after.version == connection.version
        assert not needs_refresh(after, now=NOON)

    def test_old_refresh_token_is_reused_if_reply_has_none(self) -> None:
        new, _ = renewed(ok(**NEW))
        assert new.tokens.refresh_token == "old-refresh"

    def test_reply_without_scopes_leaves_scopes_unchanged(self) -> None:
        for reply in (ok(**NEW), ok(**NEW, scope="")):
            new, _ = renewed(reply)
            assert new.scopes == ("repo",)

    def test_fewer_scopes_in_reply_leave_only_granted_and_covered(self) -> None:
        connection = a_connection(github, scopes=("repo", "public_repo", "gist"))
        new, _ = renewed(ok(**NEW, scope="repo"), provider=github, connection=connection)
        assert new.scopes == ("repo", "public_repo")

    def test_repr_of_refreshed_tokens_hides_tokens(self) -> None:
        new, _ = renewed(ok(**NEW, refresh_token="new-refresh"))
        shown = repr(new) + repr(refreshed(a_connection(), new, now=NOON))
        assert "new-key" not in shown
        assert "new-refresh" not in shown

    def test_connection_with_exchange_data_survives_storage(self) -> None:
        connection = a_connection(issuer=ISSUER)
        stored = msgspec.json.decode(msgspec.json.encode(connection), type=Connection)
        assert stored == connection

    def test_connection_stored_by_older_version_can_be_read(self) -> None:
        members = msgspec.to_builtins(a_connection())
        for name in ("issued_at", "token", "client_auth", "issuer"):
            members.pop(name)
        assert msgspec.convert(members, Connection).token_endpoint is None


class TestEndedAccount:
    @pytest.mark.parametrize(
        ("provider", "reply", "reason"),
        [
            (PLAIN, json_reply(400, error="invalid_grant"), "invalid_grant"),
            (PLAIN, json_reply(401, error="invalid_grant"), "invalid_grant"),
            (PLAIN, json_reply(403, error="invalid_grant"), "invalid_grant"),
            (PLAIN, json_reply(400, error="interaction_required"), "interaction_required"),
            (github, ok(error="bad_refresh_token"), "bad_refresh_token"),
            (
                github,
                httpx.Response(
                    200,
                    content=b"error=bad_refresh_token&error_description=x",
                    headers={"content-type": "application/x-www-form-urlencoded"},
                ),
                "bad_refresh_token",
            ),
            (slack, ok(ok=False, error="invalid_refresh_token"), "invalid_refresh_token"),
            (slack, ok(ok=False, error="token_expired"), "token_expired"),
            (slack, ok(ok=False, error="token_revoked"), "token_revoked"),
        ],
    )
    def test_permanent_refusal_requires_connecting_again(
        self, provider: Provider, reply: httpx.Response, reason: str
    ) -> None:
        with pytest.raises(RefreshTokenGone, match="has to connect it again") as gone:
            renewed(reply, provider=provider)
        assert gone.value.reason == reason
        assert not isinstance(gone.value, Failed)

    def test_account_without_refresh_token_sends_no_refresh_request(self) -> None:
        with pytest.raises(RefreshTokenGone, match="no refresh token"):
            renewed(connection=a_connection(refresh_token=None))

    def test_known_error_code_is_explained_without_provider_text(self) -> None:
        organisation = microsoft("contoso.example")
        description = "AADSTS65001: The user or administrator has not consented. Trace ID: 1"
        reply = json_reply(400, error="invalid_grant", error_description=description)
        with pytest.raises(RefreshTokenGone, match="administrator of your organisation") as gone:
            renewed(reply, provider=organisation)
        assert "Trace" not in str(gone.value)


class TestFailedRefresh:
    @pytest.mark.parametrize(
        "reply",
        [
            httpx.Response(500),
            json_reply(503, error="invalid_grant"),
            json_reply(429, error="invalid_grant"),
            json_reply(401, error="invalid_client"),
            json_reply(400, error="temporarily_unavailable"),
            json_reply(400, error="INVALID GRANT <b>"),
            httpx.Response(200, content=b"<html>error=invalid_grant</html>"),
            httpx.Response(302, headers={"location": "https://elsewhere.example"}),
            ok(token_type="bearer"),
            ok(ok=False),
            ok(access_token="two words"),
            httpx.Response(200, json=["access_token"]),
            httpx.Response(200, content=b"\xff"),
        ],
    )
    def test_other_refusal_raises_failed(self, reply: httpx.Response) -> None:
        with pytest.raises(Failed, match="Acme") as failed:
            renewed(reply)
        assert "<" not in str(failed.value)

    def test_unanswered_refresh_raises_failed(self) -> None:
        with pytest.raises(Failed, match="did not answer"):
            unanswered(refresh(a_client(), a_connection(), now=NOON))

    def test_html_page_resembling_a_form_raises_failed(self) -> None:
        page = httpx.Response(
            200, content=b"x&error=bad_refresh_token&", headers={"content-type": "text/html"}
        )
        with pytest.raises(Failed):
            renewed(page, provider=github)


def id_token(**claims: object) -> str:
    """Return an ID token as an issuer sends it.

    The signature is not checked, because the token comes directly from the issuer.
    """
    return ".".join(
        urlsafe_b64encode(part).decode().rstrip("=")
        for part in (
            b'{"alg":"RS256"}',
            json.dumps(claims).encode(),
            b"signature",
        )
    )


class TestIdTokenInReply:
    provider = openid("acme", ISSUER, label="Acme")

    def renew(self, token: object, **changes: object) -> Renewed:
        connection = a_connection(self.provider, person_id="ada", issuer=ISSUER, **changes)
        given = ok(**NEW, id_token=token)
        return renewed(given, provider=self.provider, connection=connection)[0]

    @pytest.mark.parametrize(
        "claims",
        [
            {"iss": ISSUER, "sub": "eve"},
            {"iss": ISSUER, "sub": "ADA"},
            {"iss": ISSUER, "sub": 1},
            {"iss": ISSUER, "sub": None},
            {"iss": "https://other.example", "sub": "ada"},
        ],
        ids=json.dumps,
    )
    def test_id_token_of_another_person_ends_account(self, claims: dict[str, object]) -> None:
        # finding: S13
        with pytest.raises(RefreshTokenGone, match="another person") as gone:
            self.renew(id_token(**claims))
        assert gone.value.reason == "another_person"

    @pytest.mark.parametrize(
        "token",
        [id_token(iss=ISSUER, sub="ada", aud="other"), None, 7, "", "a.b", "a.~.c", "a.W10.c"],
    )
    def test_unusable_id_token_is_ignored_at_refresh(self, token: object) -> None:
        assert self.renew(token).tokens.access_token == "new-key"

    def test_account_without_stored_issuer_is_compared_by_person_id(self) -> None:
        # finding: S13
        connection = a_connection(self.provider, person_id="ada")
        for sub, is_hers in (("ada", True), ("eve", False)):
            reply = ok(**NEW, id_token=id_token(iss=ISSUER, sub=sub))
            with contextlib.nullcontext() if is_hers else pytest.raises(RefreshTokenGone):
                renewed(reply, provider=self.provider, connection=connection)

    def test_id_token_is_not_compared_if_person_came_from_api(self) -> None:
        reply = ok(**NEW, id_token=id_token(iss=ISSUER, sub="not-1"))
        assert renewed(reply)[0].tokens.access_token == "new-key"
