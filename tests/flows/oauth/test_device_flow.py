"""The device flow: a code for the person, and polling at an interval that only grows."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest

from flows.errors import Denied, Failed
from flows.oauth.authorization_code import Grant
from flows.oauth.device_flow import GRANT_TYPE, DeviceCode, Pending, poll, start
from flows.oauth.provider import Provider
from flows.oauth.responses import TokenSet
from flows.providers import github, microsoft, openid
from tests.support.account_life import (
    ISSUER,
    METADATA,
    PLAIN,
    a_client,
    basic,
    form_of,
    json_reply,
    ok,
    unanswered,
)
from tests.support.clock import NOON
from tests.support.oauth_flow import OCTOCAT, talked

WITH_DEVICE = replace(PLAIN, device=f"{ISSUER}/device")
CODE = {
    "device_code": "3584d83530557fdd1f46af8289938c8ef79f9dc5",
    "user_code": "WDJB-MJHT",
    "verification_uri": "https://github.com/login/device",
    "expires_in": 900,
    "interval": 5,
}
KEY = {"access_token": "the-key", "token_type": "bearer", "scope": "repo"}


def started(
    provider: Provider = WITH_DEVICE, *replies: httpx.Response, scopes: tuple[str, ...] = ("repo",)
) -> tuple[DeviceCode, list[httpx.Request]]:
    talk = start(a_client(provider), scopes, now=NOON)
    return talked(talk, *(replies or (ok(**CODE),)))


def polled(
    *replies: httpx.Response, code: DeviceCode | None = None, provider: Provider = WITH_DEVICE
) -> tuple[Grant | Pending, list[httpx.Request]]:
    return talked(poll(a_client(provider), code or started()[0], now=NOON), *replies)


class TestDeviceCode:
    def test_device_flow_returns_user_code_and_verification_address(self) -> None:
        code, (request,) = started()
        assert request.url == f"{ISSUER}/device"
        assert form_of(request) == {"client_id": "our id", "scope": "repo"}
        assert request.headers["authorization"] == basic()
        assert (code.user_code, code.verification_uri) == ("WDJB-MJHT", CODE["verification_uri"])
        assert code.verification_uri_complete is None
        assert code.interval == timedelta(seconds=5)
        assert code.expires_at == NOON + timedelta(minutes=15)

    def test_device_code_is_storable_and_its_repr_hides_codes(self) -> None:
        code, _ = started()
        assert msgspec.json.decode(msgspec.json.encode(code), type=DeviceCode) == code
        assert code.device_code not in repr(code)
        assert code.user_code not in repr(code)

    def test_issuer_metadata_names_device_endpoint(self) -> None:
        acme = openid("acme", ISSUER)
        code, (_, request) = started(acme, ok(**METADATA), ok(**CODE), scopes=("email",))
        assert request.url == f"{ISSUER}/device"
        assert form_of(request)["scope"] == "openid email"
        assert code.token_endpoint == f"{ISSUER}/token"
        assert code.issuer == ISSUER

    def test_verification_url_of_google_is_read(self) -> None:
        reply = {**CODE, "verification_url": "https://www.google.com/device"}
        del reply["verification_uri"]
        assert started(WITH_DEVICE, ok(**reply))[0].verification_uri.endswith("/device")

    def test_missing_interval_defaults_to_five_seconds(self) -> None:
        reply = {key: value for key, value in CODE.items() if key != "interval"}
        assert started(WITH_DEVICE, ok(**reply))[0].interval == timedelta(seconds=5)

    @pytest.mark.parametrize(
        "change",
        [
            {"user_code": None},
            {"user_code": "W" * 65},
            {"user_code": "WDJB\u202e"},
            {"device_code": ""},
            {"device_code": "x" * 5000},
            {"verification_uri": "http://github.com/login/device"},
            {"verification_uri": "javascript:alert(1)"},
            {"expires_in": 0},
            {"expires_in": "soon"},
            {"expires_in": True},
        ],
    )
    def test_unusable_device_code_is_refused(self, change: dict[str, Any]) -> None:
        with pytest.raises(Failed, match="cannot be used"):
            started(WITH_DEVICE, ok(**{**CODE, **change}))

    def test_unsafe_complete_verification_address_is_dropped(self) -> None:
        reply = ok(**CODE, verification_uri_complete="javascript:alert(1)")
        assert started(WITH_DEVICE, reply)[0].verification_uri_complete is None

    def test_refused_device_request_fails_with_reason(self) -> None:
        with pytest.raises(Failed, match="device_flow_disabled"):
            started(github, ok(error="device_flow_disabled"))
        with pytest.raises(Failed, match="HTTP 500"):
            started(github, httpx.Response(500))
        with pytest.raises(Failed, match="without a browser"):
            started(PLAIN)
        with pytest.raises(Failed, match="did not answer"):
            unanswered(start(a_client(WITH_DEVICE), (), now=NOON))


class TestPolling:
    def test_tokens_are_reported_although_the_provider_does_not_name_the_person(self) -> None:
        tokens = list[TokenSet]()
        talk = poll(a_client(WITH_DEVICE), started()[0], now=NOON, on_tokens=tokens.append)
        with pytest.raises(Failed):
            talked(talk, ok(**KEY), httpx.Response(500))
        assert [one.access_token for one in tokens] == ["the-key"]

    def test_poll_returns_grant_after_person_answered(self) -> None:
        grant, (request, probe) = polled(ok(**KEY), ok(**OCTOCAT))
        assert isinstance(grant, Grant)
        assert form_of(request) == {
            "grant_type": GRANT_TYPE,
            "device_code": CODE["device_code"],
            "client_id": "our id",
        }
        assert probe.headers["authorization"] == "Bearer the-key"
        assert grant.person.label == "octocat"
        assert grant.scopes == ("repo",)
        assert grant.issuer == ISSUER

    def test_poll_identifies_person_with_userinfo_of_issuer(self) -> None:
        acme = openid("acme", ISSUER)
        code, _ = started(acme, ok(**METADATA), ok(**CODE))
        grant, (_, asked) = polled(
            ok(access_token="the-key", token_type="Bearer"),
            ok(sub="sub-1", email="ada@example.org"),
            code=code,
            provider=acme,
        )
        assert isinstance(grant, Grant)
        assert asked.url == f"{ISSUER}/userinfo"
        assert (grant.person.id, grant.person.label) == ("sub-1", "ada@example.org")

    @pytest.mark.parametrize(
        ("reply", "seconds"),
        [
            (json_reply(400, error="authorization_pending"), 5),
            (ok(error="authorization_pending"), 5),
            (json_reply(400, error="slow_down"), 10),
            (ok(error="slow_down", interval=20), 20),
            (ok(error="slow_down", interval=1), 10),
            (httpx.Response(503), 10),
            (httpx.Response(429), 10),
        ],
    )
    def test_pending_poll_returns_next_interval(self, reply: httpx.Response, seconds: int) -> None:
        assert polled(reply)[0] == Pending(interval=timedelta(seconds=seconds))

    def test_unanswered_poll_doubles_interval_up_to_limit(self) -> None:
        code, _ = started()
        slower = unanswered(poll(a_client(WITH_DEVICE), code, now=NOON))
        assert slower == Pending(interval=timedelta(seconds=10))
        slow = msgspec.structs.replace(code, interval=timedelta(seconds=200))
        slowest = unanswered(poll(a_client(WITH_DEVICE), slow, now=NOON))
        assert slowest == Pending(interval=timedelta(seconds=300))

    @pytest.mark.parametrize("error", ["access_denied", "authorization_declined"])
    def test_denied_poll_raises_denied(self, error: str) -> None:
        with pytest.raises(Denied, match="declined at Acme"):
            polled(json_reply(400, error=error))

    def test_expired_token_error_fails_with_not_entered_in_time(self) -> None:
        with pytest.raises(Failed, match="not entered in time"):
            polled(json_reply(400, error="expired_token"))

    def test_expired_device_code_is_not_polled(self) -> None:
        code, _ = started()
        with pytest.raises(Failed, match="not entered in time"):
            talked(poll(a_client(WITH_DEVICE), code, now=code.expires_at))

    @pytest.mark.parametrize(
        ("provider", "reply", "words"),
        [
            (WITH_DEVICE, json_reply(400, error="incorrect_device_code"), "incorrect_device_code"),
            (WITH_DEVICE, json_reply(401, error="invalid_client"), "invalid_client"),
            (WITH_DEVICE, ok(token_type="bearer"), "did not issue an access token"),
            (
                microsoft(),
                json_reply(
                    400, error="invalid_grant", error_description="AADSTS90094: needs admin"
                ),
                "administrator",
            ),
        ],
    )
    def test_other_poll_error_fails(
        self, provider: Provider, reply: httpx.Response, words: str
    ) -> None:
        with pytest.raises(Failed, match=words):
            polled(reply, provider=provider)

    def test_token_without_identifiable_person_fails(self) -> None:
        with pytest.raises(Failed, match="whose account"):
            polled(ok(**KEY), httpx.Response(401))
