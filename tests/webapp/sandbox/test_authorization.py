"""The sandbox's authorization server: codes, tokens, identity, and quirks of three providers."""

import asyncio
import base64
from typing import Any
from urllib.parse import parse_qs

import pytest
from authlib.oauth2.rfc8414 import AuthorizationServerMetadata  # type: ignore[import-untyped]
from authlib.oidc.core import CodeIDToken  # type: ignore[import-untyped]
from authlib.oidc.discovery import OpenIDProviderMetadata  # type: ignore[import-untyped]
from joserfc import jwt
from joserfc.jwk import KeySet

from tests.support.clock import Clock
from tests.support.sandbox import GITHUB, OIDC, SLACK, URL, Person
from webapp.sandbox.authorization.habits import Faults, SimulatedFault

ALL = pytest.mark.parametrize(
    ("provider", "scope"), [(OIDC, "openid"), (GITHUB, "repo"), (SLACK, "chat:write")]
)
DATA = {"grant_type": "authorization_code"}


def error_of(reply: dict[str, Any]) -> str:
    error: str = reply["error"]
    return error


async def test_code_is_exchanged_for_tokens_and_userinfo_names_person(person: Person):
    reply = await person.connect(scope="openid profile email")
    assert reply["token_type"] == "Bearer"
    assert reply["expires_in"] == 3600
    assert reply["scope"] == "openid profile email"
    who = await person.get("/oidc/userinfo", reply["access_token"])
    assert who.json() == {
        "sub": "sandbox-583231",
        "name": "Octo Cat",
        "preferred_username": "octocat",
        "picture": f"{URL}/sandbox.svg",
        "email": "octocat@sandbox.example",
        "email_verified": True,
    }


async def test_id_token_is_signed_and_has_required_claims(person: Person, clock: Clock):
    reply = await person.connect(nonce="the-nonce")
    keys = KeySet.import_key_set((await person.http.get("/oidc/jwks")).json())
    token = jwt.decode(reply["id_token"], keys, algorithms=["ES256"])
    now = int(clock.now.timestamp())
    jwt.JWTClaimsRegistry(
        now=now,
        iss={"essential": True, "value": f"{URL}/oidc"},
        aud={"essential": True, "value": person.sandbox.client_id},
        exp={"essential": True},
        nonce={"essential": True, "value": "the-nonce"},
    ).validate(token.claims)
    claims = CodeIDToken(
        token.claims,
        token.header,
        options={"iss": {"value": f"{URL}/oidc"}, "sub": {"value": "sandbox-583231"}},
        params={
            "client_id": person.sandbox.client_id,
            "nonce": "the-nonce",
            "access_token": reply["access_token"],
        },
    )
    claims.validate(now=now)
    assert claims["at_hash"]
    assert "email" not in claims


async def test_key_set_contains_no_private_key(person: Person):
    keys = (await person.http.get("/oidc/jwks")).json()["keys"]
    assert [set(key) & {"d", "p", "q", "k"} for key in keys] == [set()]


async def test_metadata_is_equal_in_both_locations_and_valid(person: Person):
    openid = (await person.http.get("/oidc/.well-known/openid-configuration")).json()
    oauth = (await person.http.get("/.well-known/oauth-authorization-server/oidc")).json()
    assert openid == oauth
    assert openid["issuer"] == f"{URL}/oidc"
    assert openid["code_challenge_methods_supported"] == ["S256"]
    assert openid["authorization_response_iss_parameter_supported"] is True
    for key in ("token_endpoint", "userinfo_endpoint", "jwks_uri", "revocation_endpoint"):
        assert openid[key].startswith(f"{URL}/oidc/")
    # The validators require https, and RS256 among the algorithms. The sandbox has one algorithm.
    secured = {
        key: value.replace("http://", "https://", 1) if isinstance(value, str) else value
        for key, value in openid.items()
    }
    AuthorizationServerMetadata(secured).validate()
    algorithms = "id_token_signing_alg_values_supported"
    assert openid[algorithms] == ["ES256"]
    OpenIDProviderMetadata({**secured, algorithms: ["ES256", "RS256"]}).validate()


@ALL
async def test_second_use_of_code_revokes_tokens_of_first(provider, scope, person: Person):
    code = (await person.approve(provider, scope=scope))["code"]
    first = (await person.exchange(code, provider)).json()
    assert first["access_token"]
    again = (await person.exchange(code, provider)).json()
    assert error_of(again) in ("invalid_grant", "bad_verification_code", "code_already_used")
    after = (await person.refresh(first["refresh_token"], provider)).json()
    assert error_of(after) in ("invalid_grant", "bad_refresh_token", "invalid_refresh_token")


async def test_code_is_valid_for_a_minute(person: Person, clock: Clock):
    code = (await person.approve())["code"]
    clock.tick(seconds=59.9)
    assert (await person.exchange(code)).status_code == 200
    code = (await person.approve())["code"]
    clock.tick(seconds=60)
    late = await person.exchange(code)
    assert late.status_code == 400
    assert error_of(late.json()) == "invalid_grant"


@pytest.mark.parametrize(
    "changes",
    [
        {"redirect_uri": "http://127.0.0.1:8765/callback/other"},
        {"redirect_uri": None},
        {"code_verifier": "a" * 43},
        {"code_verifier": None},
    ],
)
async def test_mismatched_exchange_is_refused_and_code_is_used_up(changes, person: Person):
    code = (await person.approve())["code"]
    assert error_of((await person.exchange(code, **changes)).json()) == "invalid_grant"
    assert error_of((await person.exchange(code)).json()) == "invalid_grant"


@ALL
async def test_refresh_token_rotates(provider, scope, person: Person):
    first = await person.connect(provider, scope=scope)
    second = (await person.refresh(first["refresh_token"], provider)).json()
    assert second["scope"] == scope
    assert second["refresh_token"] != first["refresh_token"]
    assert second["access_token"] != first["access_token"]
    third = (await person.refresh(second["refresh_token"], provider)).json()
    assert third["access_token"]


async def test_reused_refresh_token_revokes_family(person: Person):
    first = await person.connect()
    second = (await person.refresh(first["refresh_token"])).json()
    assert error_of((await person.refresh(first["refresh_token"])).json()) == "invalid_grant"
    assert error_of((await person.refresh(second["refresh_token"])).json()) == "invalid_grant"
    assert (await person.get("/oidc/userinfo", second["access_token"])).status_code == 401


async def test_refresh_can_narrow_but_not_widen_scope(person: Person):
    first = await person.connect(scope="openid email")
    more = await person.token(
        grant_type="refresh_token", refresh_token=first["refresh_token"], scope="openid profile"
    )
    assert error_of(more.json()) == "invalid_scope"
    less = await person.token(
        grant_type="refresh_token", refresh_token=first["refresh_token"], scope="openid"
    )
    assert less.json()["scope"] == "openid"
    who = await person.get("/oidc/userinfo", less.json()["access_token"])
    assert who.json() == {"sub": "sandbox-583231"}


async def test_access_token_is_valid_for_an_hour(person: Person, clock: Clock):
    token = (await person.connect())["access_token"]
    clock.tick(minutes=59)
    assert (await person.get("/oidc/userinfo", token)).status_code == 200
    clock.tick(minutes=1)
    late = await person.get("/oidc/userinfo", token)
    assert late.status_code == 401
    assert 'error="invalid_token"' in late.headers["www-authenticate"]


async def test_userinfo_needs_openid_scope_and_token(person: Person):
    token = (await person.connect(scope="email"))["access_token"]
    assert (await person.get("/oidc/userinfo", token)).status_code == 403
    assert (await person.http.get("/oidc/userinfo")).status_code == 401


async def test_response_without_openid_scope_has_no_id_token(person: Person):
    assert "id_token" not in await person.connect(scope="email")


@pytest.mark.parametrize("kind", ["access_token", "refresh_token"])
async def test_revoking_either_token_revokes_both(kind: str, person: Person):
    reply = await person.connect()
    password = basic(person)
    revoked = await person.http.post("/oidc/revoke", data={"token": reply[kind]}, headers=password)
    assert revoked.status_code == 200
    assert (await person.get("/oidc/userinfo", reply["access_token"])).status_code == 401
    assert error_of((await person.refresh(reply["refresh_token"])).json()) == "invalid_grant"


async def test_revoking_unknown_token_succeeds_and_unknown_client_is_refused(person: Person):
    password = basic(person)
    unknown = await person.http.post("/oidc/revoke", data={"token": "nothing"}, headers=password)
    assert unknown.status_code == 200
    stranger = await person.http.post("/oidc/revoke", data={"token": "nothing"})
    assert stranger.status_code == 401


async def test_client_secret_can_be_sent_in_header(person: Person):
    code = (await person.approve())["code"]
    data = {
        **DATA,
        "code": code,
        "redirect_uri": person.query()["redirect_uri"],
        "code_verifier": person.verifier,
    }
    reply = await person.http.post("/oidc/token", data=data, headers=basic(person))
    assert reply.json()["access_token"]
    assert reply.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "changes", [{"client_secret": "wrong"}, {"client_secret": None}, {"client_id": "somebody"}]
)
async def test_wrong_client_secret_is_refused_in_format_of_each_provider(changes, person: Person):
    oidc = await person.token(grant_type="authorization_code", code="any", **changes)
    assert oidc.status_code == 401
    assert oidc.headers["www-authenticate"].startswith("Basic")
    assert error_of(oidc.json()) == "invalid_client"
    github = await person.token(GITHUB, code="any", **changes)
    assert github.status_code == 200
    assert error_of(github.json()) == "incorrect_client_credentials"
    slack = await person.token(SLACK, code="any", **changes)
    assert slack.status_code == 200
    assert slack.json() == {"ok": False, "error": "bad_client_secret"}


async def test_two_client_secrets_in_same_request_are_refused(person: Person):
    data = {**DATA, "code": "any", "client_secret": person.sandbox.client_secret}
    reply = await person.http.post("/oidc/token", data=data, headers=basic(person))
    assert error_of(reply.json()) == "invalid_request"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"grant_type": None}, "invalid_request"),
        ({"grant_type": "password"}, "unsupported_grant_type"),
        ({"grant_type": "authorization_code"}, "invalid_request"),
        ({"grant_type": "refresh_token"}, "invalid_request"),
        ({"grant_type": "refresh_token", "refresh_token": "x"}, "invalid_grant"),
        ({"grant_type": "authorization_code", "code": "x"}, "invalid_grant"),
    ],
)
async def test_invalid_token_request_gets_standard_error(changes, error, person: Person):
    reply = await person.token(**changes)
    assert reply.status_code == 400
    assert error_of(reply.json()) == error


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"code=1&code=2", "application/x-www-form-urlencoded"),
        (b"code=%ff", "application/x-www-form-urlencoded"),
        (b"\xff\xfe", "application/x-www-form-urlencoded"),
        (b"a=1" + b"&a=1" * 99, "application/x-www-form-urlencoded"),
        (b"{}", "application/json"),
        (b"", ""),
    ],
)
async def test_body_which_is_no_form_is_refused(content, media_type, person: Person):
    headers = {"content-type": media_type, **basic(person)}
    reply = await person.http.post("/oidc/token", content=content, headers=headers)
    assert reply.status_code == 400
    assert error_of(reply.json()) == "invalid_request"


async def test_too_large_body_is_refused(person: Person):
    headers = {"content-type": "application/x-www-form-urlencoded"}
    reply = await person.http.post("/oidc/token", content=b"a" * 70_000, headers=headers)
    assert reply.status_code == 413


async def test_github_answers_with_form_unless_json_is_accepted(person: Person):
    code = (await person.approve(GITHUB, scope="repo read:user"))["code"]
    data = {
        "client_id": person.sandbox.client_id,
        "client_secret": person.sandbox.client_secret,
        "code": code,
        "redirect_uri": person.query()["redirect_uri"],
        "code_verifier": person.verifier,
    }
    reply = await person.http.post(GITHUB.token, data=data)
    assert reply.headers["content-type"].startswith("application/x-www-form-urlencoded")
    fields = parse_qs(reply.text)
    assert fields["scope"] == ["repo,read:user"]
    assert fields["token_type"] == ["bearer"]
    again = await person.http.post(GITHUB.token, data=data)
    assert again.status_code == 200
    assert parse_qs(again.text)["error"] == ["bad_verification_code"]


async def test_github_reports_redirect_uri_mismatch(person: Person):
    code = (await person.approve(GITHUB, scope=None))["code"]
    reply = await person.exchange(code, GITHUB, redirect_uri="http://127.0.0.1:8765/other")
    assert error_of(reply.json()) == "redirect_uri_mismatch"


async def test_github_shows_private_repositories_only_with_repo_scope(person: Person):
    token = (await person.connect(GITHUB, scope="repo"))["access_token"]
    user = await person.get("/github/api/user", token)
    assert user.json()["id"] == 583231
    assert user.json()["login"] == "octocat"
    assert user.json()["avatar_url"] == f"{URL}/sandbox.svg"
    all_of_them = (await person.get("/github/api/user/repos", token)).json()
    assert "octocat/secret-plans" in [one["full_name"] for one in all_of_them]
    less = (await person.connect(GITHUB, scope="read:user"))["access_token"]
    public = (await person.get("/github/api/user/repos", less)).json()
    assert public
    assert not any(one["private"] for one in public)


async def test_github_refuses_a_wrong_token(person: Person):
    for path in ("/github/api/user", "/github/api/user/repos"):
        refused = await person.get(path, "gho_sandbox_nothing")
        assert refused.status_code == 401
        assert refused.json() == {"message": "Bad credentials"}


async def test_token_of_provider_is_invalid_at_another(person: Person):
    token = (await person.connect())["access_token"]
    assert (await person.get("/github/api/user", token)).status_code == 401


async def test_github_deletes_token_only_for_its_client(person: Person):
    token = (await person.connect(GITHUB, scope=None))["access_token"]
    path = f"/github/api/applications/{person.sandbox.client_id}/token"

    async def delete(path: str, body: Any, headers: dict[str, str]) -> int:
        return (await person.http.request("DELETE", path, json=body, headers=headers)).status_code

    password = basic(person)
    assert await delete(path, {"access_token": token}, {}) == 401
    assert await delete(path.replace("elicit", "other"), {"access_token": token}, password) == 401
    assert await delete(path, ["nothing"], password) == 422
    assert (await person.get("/github/api/user", token)).status_code == 200
    assert await delete(path, {"access_token": token}, password) == 204
    assert (await person.get("/github/api/user", token)).status_code == 401
    assert await delete(path, {"access_token": token}, password) == 404


async def test_slack_returns_bot_token_and_separate_user_token(person: Person):
    reply = await person.connect(SLACK, scope="chat:write,channels:read", user_scope="search:read")
    assert reply["ok"] is True
    assert reply["token_type"] == "bot"
    assert reply["scope"] == "chat:write,channels:read"
    assert reply["access_token"].startswith("xoxb-")
    own = reply["authed_user"]
    assert own["access_token"].startswith("xoxp-")
    assert own["token_type"] == "user"
    assert own["scope"] == "search:read"
    who = (await person.get("/slack/api/auth.test", own["access_token"])).json()
    assert (who["ok"], who["user"], who["user_id"]) == (True, "octocat", own["id"])


async def test_slack_returns_no_bot_token_for_user_scopes_alone(person: Person):
    reply = await person.connect(SLACK, scope=None, user_scope="identity.basic")
    assert "access_token" not in reply
    assert reply["authed_user"]["access_token"]


async def test_slack_refreshes_and_revokes_each_token_separately(person: Person):
    reply = await person.connect(SLACK, scope="chat:write", user_scope="search:read")
    own = reply["authed_user"]
    fresh = (await person.refresh(own["refresh_token"], SLACK)).json()
    assert (fresh["ok"], fresh["token_type"]) == (True, "user")
    revoked = (await person.get("/slack/api/auth.revoke", fresh["access_token"])).json()
    assert revoked == {"ok": True, "revoked": True}
    gone = (await person.get("/slack/api/auth.test", fresh["access_token"])).json()
    assert gone == {"ok": False, "error": "invalid_auth"}
    assert (await person.get("/slack/api/auth.test", reply["access_token"])).json()["ok"] is True


@pytest.mark.parametrize(
    ("fault", "status"),
    [("500", 500), ("html", 200), ("200-with-error", 200), ("no-token", 200), ("huge-token", 200)],
)
async def test_planned_fault_occurs_once_and_leaves_code_valid(fault, status, person: Person):
    planned = await person.plan(next=fault)
    assert planned.json() == {"next": [fault]}
    code = (await person.approve())["code"]
    bad = await person.exchange(code)
    assert bad.status_code == status
    if fault in ("500", "html"):
        assert not bad.headers["content-type"].startswith("application/json")
    else:
        token = bad.json().get("access_token")
        assert len(token or "") == (100_000 if fault == "huge-token" else 0)
        assert ("error" in bad.json()) == (fault == "200-with-error")
    assert (await person.exchange(code)).json()["access_token"]


async def test_slow_reply_is_held_until_released(person: Person):
    code = (await person.approve())["code"]
    await person.plan(next="slow")
    async with asyncio.TaskGroup() as group:
        reply = group.create_task(person.exchange(code))
        for _ in range(200):
            await asyncio.sleep(0)
        assert (await person.plan()).json() == {"next": []}  # the request has arrived
        assert not reply.done()
        await person.plan(release=True)
    assert reply.result().json()["access_token"]


async def test_held_reply_ends_on_disconnect_or_release():
    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def silent() -> Any:
        await asyncio.Event().wait()

    faults = Faults()
    faults.plan(SimulatedFault.SLOW)
    async with asyncio.timeout(300):
        await faults.hold(gone)
        faults.release()
        await faults.hold(silent)


@pytest.mark.parametrize("wish", [{"next": "fire"}, {"next": []}, [], "x", {"next": None}])
async def test_invalid_control_request_is_refused_and_valid_faults_are_named(wish, person: Person):
    bearer = {"authorization": f"Bearer {person.sandbox.client_secret}"}
    answer = await person.http.post("/control", json=wish, headers=bearer)
    assert answer.status_code == 400
    assert "huge-token" in answer.json()["detail"]


async def test_faults_can_be_planned_only_with_secret(person: Person):
    for headers in ({}, {"authorization": "Bearer "}, {"authorization": "Bearer wrong"}):
        answer = await person.http.post("/control", json={"next": "500"}, headers=headers)
        assert answer.status_code == 401


async def test_stripe_checkout_is_on_same_origin(person: Person):
    refused = await person.http.post("/stripe/v1/refunds")
    assert refused.status_code == 401
    key = {"authorization": f"Bearer {person.sandbox.stripe_key}"}
    unknown = await person.http.get("/stripe/v1/checkout/sessions/cs_nothing", headers=key)
    assert unknown.status_code == 404


async def test_all_payment_providers_are_on_same_origin(person: Person):
    for path in ("/paypal/v2/checkout/orders/NOTHING", "/mollie/v2/payments/tr_nothing"):
        assert (await person.http.get(path)).status_code == 401
    key = {"authorization": f"Bearer {person.sandbox.mollie_key}"}
    unknown = await person.http.get("/mollie/v2/payments/tr_nothing", headers=key)
    assert unknown.status_code == 404
    for seller in (person.sandbox.paypal(), person.sandbox.mollie()):
        assert seller.checkout_origins == (person.sandbox.url,)
        assert not seller.is_live


async def test_repr_of_sandbox_shows_no_secret(person: Person):
    sandbox = person.sandbox
    for secret in (
        sandbox.client_secret,
        sandbox.stripe_key,
        sandbox.webhook_secret,
        sandbox.paypal_secret,
        sandbox.mollie_key,
    ):
        assert secret not in repr((sandbox, sandbox.paypal(), sandbox.mollie()))


def basic(person: Person) -> dict[str, str]:
    pair = f"{person.sandbox.client_id}:{person.sandbox.client_secret}"
    return {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
