"""The authorization code flow: what is sent, stored, and read from the replies."""

import base64
import hashlib
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest

from flows.elicitation.states import Elicitation
from flows.errors import Denied, Failed, NotConfigured
from flows.oauth.authorization_code import Grant, Mixed, OauthFlow
from flows.oauth.provider import Client, PersonProbe
from flows.oauth.requests import authorize_parameters, authorize_url
from flows.providers import github, google, openid
from tests.support.clock import NOON
from tests.support.oauth_flow import (
    ACME,
    CALLBACK,
    ISSUER,
    METADATA,
    OCTOCAT,
    TRIP,
    a_flow,
    an_elicitation,
    arrived,
    departed,
    granted,
    id_token,
    key_set,
    parameters_of,
)


def exchanged(
    token_reply: dict[str, Any], who: dict[str, Any] = OCTOCAT, **departing: Any
) -> Grant:
    """Return the grant for GitHub's token reply `token_reply` and its API's reply `who`."""
    _, away = departed(**departing)
    replies = (httpx.Response(200, json=token_reply), httpx.Response(200, json=who))
    return granted(github, away, *replies)[0]


def stored_in(away: Elicitation) -> Any:
    return away.attempt and away.attempt.kept


class TestRedirect:
    def test_redirect_url_contains_all_required_parameters(self) -> None:
        # defect: lynq no PKCE
        departure, away = departed()
        assert departure.url.startswith("https://github.com/login/oauth/authorize?")
        sent = parameters_of(departure.url)
        stored = stored_in(away)
        digest = hashlib.sha256(stored["verifier"].encode()).digest()
        assert sent == {
            "response_type": ["code"],
            "client_id": ["our id"],
            "redirect_uri": [CALLBACK],
            "scope": ["repo read:user"],
            "state": ["the-state"],
            "code_challenge": [base64.urlsafe_b64encode(digest).rstrip(b"=").decode()],
            "code_challenge_method": ["S256"],
        }

    def test_each_attempt_has_its_own_hidden_verifier(self) -> None:
        stored: list[Any] = [a_flow().prepare(an_elicitation(), TRIP) for _ in range(2)]
        assert stored[0]["verifier"] != stored[1]["verifier"]
        assert 64 <= len(stored[0]["verifier"]) <= 128
        departure, away = departed()
        assert stored[0]["verifier"] not in departure.url + repr(departure) + repr(away)

    def test_wanted_account_is_sent_as_login_hint(self) -> None:
        departure, _ = departed(account="octocat")
        assert parameters_of(departure.url)["login"] == ["octocat"]

    def test_scope_separator_of_provider_is_used(self) -> None:
        departure, _ = departed(replace(github, scope_separator=","))
        assert parameters_of(departure.url)["scope"] == ["repo,read:user"]

    def test_issuer_metadata_determines_redirect_and_token_endpoint(self) -> None:
        departure, away = departed(ACME, scopes=("email",))
        assert departure.url.startswith(f"{ISSUER}/authorize?tenant=a")
        sent = parameters_of(departure.url)
        stored = stored_in(away)
        assert sent["tenant"] == ["a b"]
        assert sent["scope"] == ["openid email"]
        assert sent["nonce"] == [stored["nonce"]]
        assert stored["token"] == f"{ISSUER}/token"
        assert stored["jwks"] == f"{ISSUER}/jwks"

    def test_metadata_url_is_built_from_issuer_without_double_slash(self) -> None:
        provider = openid("acme", ISSUER + "/")
        flow = a_flow(provider)
        stored = flow.prepare(an_elicitation(provider), TRIP)
        talk = flow.begin(an_elicitation(provider, attempt_data=stored), TRIP)
        assert next(talk).url == f"{ISSUER}/.well-known/openid-configuration"

    def test_issuer_supporting_only_client_secret_post_gets_post(self) -> None:
        post = {"token_endpoint_auth_methods_supported": ["private_key_jwt", "client_secret_post"]}
        _, away = departed(ACME, metadata=METADATA | post)
        stored = stored_in(away)
        assert stored["client_auth"] == "post"
        _, away = departed(ACME)
        stored = stored_in(away)
        assert stored["client_auth"] == "basic"

    def test_google_is_asked_for_offline_access(self) -> None:
        metadata = METADATA | {"issuer": google.issuer}
        departure, _ = departed(google, scopes=(), metadata=metadata)
        sent = parameters_of(departure.url)
        assert sent["access_type"] == ["offline"]
        assert sent["prompt"] == ["consent"]
        assert sent["scope"] == ["openid email"]

    def test_provider_without_client_id_is_not_configured(self) -> None:
        with pytest.raises(NotConfigured, match="ELICIT_GITHUB_CLIENT_ID"):
            OauthFlow({}).prepare(an_elicitation(), TRIP)

    def test_changed_client_registration_fails_the_attempt(self) -> None:
        client = Client(provider=github, client_id="another", client_secret="s")
        with pytest.raises(Failed, match="registration at GitHub has changed"):
            OauthFlow({"github": client}).prepare(an_elicitation(), TRIP)


class TestCallback:
    def test_code_is_read_from_valid_response(self) -> None:
        _, away = departed()
        back = arrived(code="the-code", state="s", iss="https://github.com/login/oauth")
        assert a_flow().read_callback(away, back)[0] == "the-code"

    def test_access_denied_raises_denied(self) -> None:
        _, away = departed()
        back = arrived(error="access_denied", state="s", iss="https://github.com/login/oauth")
        with pytest.raises(Denied, match="declined at GitHub") as denied:
            a_flow().read_callback(away, back)
        assert denied.value.elicitation_id == "e1"

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            ("server_error", "GitHub refused (server_error)."),
            ("invalid_scope", "GitHub refused (invalid_scope)."),
            ("<b>pay me</b>", "GitHub refused."),
            ("call 0800 123", "GitHub refused."),
            ("x" * 65, "GitHub refused."),
            ("", "GitHub refused."),
        ],
    )
    def test_other_error_is_reported_with_safe_error_code_only(
        self, error: str, message: str
    ) -> None:
        _, away = departed()
        back = arrived(error=error, state="s", iss="https://github.com/login/oauth")
        with pytest.raises(Failed) as failed:
            a_flow().read_callback(away, back)
        assert str(failed.value) == message

    def test_response_without_issuer_is_refused_if_provider_declares_issuer(self) -> None:
        # finding: T4
        provider = replace(github, issuer="https://login.example", sends_issuer=True)
        assert not provider.discovers
        _, away = departed(provider)
        with pytest.raises(Mixed):
            a_flow(provider).read_callback(away, arrived(code="c"))
        back = arrived(code="c", iss="https://login.example")
        assert a_flow(provider).read_callback(away, back)[0] == "c"

    def test_response_without_declared_issuer_is_refused_if_metadata_promises_none(
        self,
    ) -> None:
        # finding: T4, XH1
        provider = openid("acme", ISSUER, sends_issuer=True)
        assert provider.discovers
        assert "authorization_response_iss_parameter_supported" not in METADATA
        _, away = departed(provider, scopes=("email",))
        with pytest.raises(Mixed):
            a_flow(provider).read_callback(away, arrived(code="c"))
        assert a_flow(provider).read_callback(away, arrived(code="c", iss=ISSUER))[0] == "c"

    def test_provider_without_declared_issuer_may_send_issuer(self) -> None:
        provider = replace(github, issuer=None, sends_issuer=False)
        _, away = departed(provider)
        assert a_flow(provider).read_callback(away, arrived(code="c", iss="https://x"))[0] == "c"


class TestCodeExchange:
    def test_code_is_exchanged_for_token_and_person(self) -> None:
        _, away = departed()
        token_reply = {"access_token": "gho_x", "scope": "repo,read:user", "token_type": "bearer"}
        grant, asked = granted(
            github, away, httpx.Response(200, json=token_reply), httpx.Response(200, json=OCTOCAT)
        )
        exchange, probe = asked
        stored = stored_in(away)
        assert (exchange.method, str(exchange.url)) == ("POST", github.token)
        assert exchange.headers["Accept"] == "application/json"
        assert {key: value[0] for key, value in parse_qs(exchange.content.decode()).items()} == {
            "grant_type": "authorization_code",
            "code": "the-code",
            "redirect_uri": CALLBACK,
            "code_verifier": stored["verifier"],
            "client_id": "our id",
            "client_secret": "our:secret/%",
        }
        assert (probe.method, str(probe.url)) == ("GET", "https://api.github.com/user")
        assert probe.headers["Authorization"] == "Bearer gho_x"
        assert all(request.headers["User-Agent"] for request in asked)
        assert grant.tokens.access_token == "gho_x"
        assert grant.tokens.expires_at is None
        assert grant.scopes == ("repo", "read:user")
        assert grant.issuer == github.issuer
        assert (grant.person.id, grant.person.label) == ("583231", "octocat")
        assert grant.person.name == "The Octocat"

    def test_repr_of_grant_hides_tokens(self) -> None:
        grant = exchanged({"access_token": "gho_x", "refresh_token": "ghr_y"})
        assert grant.tokens.refresh_token == "ghr_y"
        assert "gho_x" not in repr(grant) + str(grant)
        assert "ghr_y" not in repr(grant) + str(grant)
        assert "our:secret" not in repr(
            Client(provider=github, client_id="i", client_secret="our:secret")
        )

    def test_client_credentials_are_sent_as_basic_auth_if_provider_requires(self) -> None:
        provider = replace(github, client_auth="basic", body="json")
        _, away = departed(provider)
        talk = a_flow(provider).finish(away, code="the-code", now=NOON)
        exchange = next(talk)
        stored = stored_in(away)
        scheme, _, pair = exchange.headers["Authorization"].partition(" ")
        assert scheme == "Basic"
        assert base64.b64decode(pair) == b"our%20id:our%3Asecret%2F%25"
        assert msgspec.json.decode(exchange.content) == {
            "grant_type": "authorization_code",
            "code": "the-code",
            "redirect_uri": CALLBACK,
            "code_verifier": stored["verifier"],
        }

    def test_fewer_granted_scopes_are_reported_with_covered_scopes(self) -> None:
        grant = exchanged(
            {"access_token": "t", "scope": "user, gist"}, scopes=("repo", "user:email", "user")
        )
        assert grant.scopes == ("user", "gist", "user:email")
        assert github.missing(("repo", "user:email"), granted=grant.scopes) == ("repo",)

    @pytest.mark.parametrize(
        ("members", "scopes"),
        [
            ({}, ("repo", "read:user")),
            ({"scope": None}, ("repo", "read:user")),
            ({"scope": ""}, ()),
            ({"scope": ["repo", 7]}, ("repo",)),
            ({"scope": "repo,,repo, \x00"}, ("repo",)),
        ],
    )
    def test_granted_scopes_are_read_from_reply_or_default_to_requested(
        self, members: dict[str, Any], scopes: tuple[str, ...]
    ) -> None:
        grant = exchanged({"access_token": "t", **members})
        assert grant.scopes == scopes

    @pytest.mark.parametrize(
        ("expires_in", "seconds"),
        [
            (28800, 28800),
            ("3600", 3600),
            (3600.0, 3600),
            ("3600.5", 3600.5),
            (0, None),
            (0.25, None),
            ("1e3", None),
            (-1, None),
            ("-3600", None),
            (True, None),
            ("soon", None),
            (10**12, None),
            (1e300, None),
            (None, None),
            ([], None),
        ],
    )
    def test_only_plausible_expiry_is_used(self, expires_in: object, seconds: float | None) -> None:
        grant = exchanged({"access_token": "t", "expires_in": expires_in})
        after = None if seconds is None else NOON + timedelta(seconds=seconds)
        assert grant.tokens.expires_at == after

    def test_byte_order_mark_before_reply_is_ignored(self) -> None:
        _, away = departed()
        reply = httpx.Response(200, content=b'\xef\xbb\xbf{"access_token": "t"}')
        grant, _ = granted(github, away, reply, httpx.Response(200, json=OCTOCAT))
        assert grant.tokens.access_token == "t"

    def test_nested_access_token_is_found(self) -> None:
        provider = replace(
            github,
            token_path=("authed_user",),
            person=PersonProbe(url="https://api.github.com/who", id="user.id", label="user.name"),
        )
        _, away = departed(provider)
        token_reply = {"ok": True, "authed_user": {"access_token": "xoxp", "token_type": "user"}}
        who = {"ok": True, "user": {"id": "U1", "name": "ada"}}
        grant, _ = granted(
            provider, away, httpx.Response(200, json=token_reply), httpx.Response(200, json=who)
        )
        assert grant.tokens.access_token == "xoxp"
        assert (grant.person.id, grant.person.label) == ("U1", "ada")

    def test_form_encoded_reply_is_read_only_where_declared(self) -> None:
        form = httpx.Response(
            200,
            text="access_token=gho_x&scope=repo%2Cuser&token_type=bearer",
            headers={"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"},
        )
        _, away = departed()
        grant, _ = granted(github, away, form, httpx.Response(200, json=OCTOCAT))
        assert grant.scopes[:2] == ("repo", "user")
        provider = replace(github, replies="json")
        with pytest.raises(Failed, match="did not issue an access token"):
            granted(provider, away, form)

    def test_token_request_without_answer_is_not_repeated(self) -> None:
        _, away = departed()
        talk = a_flow().finish(away, code="the-code", now=NOON)
        request = next(talk)
        with pytest.raises(Failed, match="GitHub did not answer"):
            talk.throw(httpx.ReadTimeout("slow", request=request))
        assert list(talk) == []


class TestPersonOfAccount:
    def test_id_token_identifies_the_person(self) -> None:
        _, away = departed(ACME)
        token = id_token(away, email="ada@example.com", name="Ada", picture="https://p.example/a")
        token_reply = {"access_token": "t", "id_token": token}
        grant, asked = granted(ACME, away, httpx.Response(200, json=token_reply), key_set())
        assert [str(request.url) for request in asked] == [f"{ISSUER}/token", f"{ISSUER}/jwks"]
        assert "Authorization" not in asked[1].headers
        assert (grant.person.id, grant.person.label) == ("sub-1", "ada@example.com")
        assert grant.person.picture == "https://p.example/a"
        assert grant.issuer == ISSUER

    def test_userinfo_is_fetched_if_id_token_has_no_label(self) -> None:
        _, away = departed(ACME)
        token_reply = {"access_token": "t", "id_token": id_token(away)}
        more = {"sub": "sub-1", "preferred_username": "ada"}
        grant, asked = granted(
            ACME,
            away,
            httpx.Response(200, json=token_reply),
            key_set(),
            httpx.Response(200, json=more),
        )
        assert grant.person.label == "ada"
        assert asked[2].headers["Authorization"] == "Bearer t"

    @pytest.mark.parametrize(
        ("label", "shown"),
        [
            ("octocat", "octocat"),
            ("a" * 200, "a" * 80),
            ("octo\u202ecat\n<b>", "octocat<b>"),
            ("\u200b\u202e", "583231"),
            ("", "583231"),
            (None, "583231"),
            (7, "7"),
            ([7], "583231"),
        ],
    )
    def test_label_is_cut_and_cleaned_for_display(self, label: object, shown: str) -> None:
        grant = exchanged({"access_token": "t"}, {"id": 583231, "login": label})
        assert grant.person.label == shown

    @pytest.mark.parametrize(
        ("picture", "is_stored"),
        [
            ("https://avatars.example/u/1?v=4", True),
            ("http://127.0.0.1:8766/a.png", True),
            ("http://avatars.example/u/1", False),
            ("javascript:alert(1)", False),
            ("data:image/png;base64,xx", False),
            ("https://x.example/" + "a" * 3000, False),
            (7, False),
        ],
    )
    def test_picture_is_stored_only_with_safe_url(self, picture: object, is_stored: bool) -> None:
        grant = exchanged({"access_token": "t"}, OCTOCAT | {"avatar_url": picture})
        assert grant.person.picture == (picture if is_stored else None)

    @pytest.mark.parametrize(
        "reply",
        [
            httpx.Response(401, json={"message": "Bad credentials"}),
            httpx.Response(200, text="<html>"),
            httpx.Response(200, json=[]),
            httpx.Response(200, json={}),
            httpx.Response(200, json={"id": None}),
            httpx.Response(200, json={"id": ""}),
            httpx.Response(200, json={"id": True}),
            httpx.Response(200, json={"id": "x" * 300}),
            httpx.Response(200, json={"id": {"id": 1}}),
        ],
    )
    def test_account_without_id_is_refused(self, reply: httpx.Response) -> None:
        _, away = departed()
        with pytest.raises(Failed, match="GitHub did not say whose account it is"):
            granted(github, away, httpx.Response(200, json={"access_token": "t"}), reply)


def parameters_for(scopes: tuple[str, ...], *, switches: bool = False) -> dict[str, list[str]]:
    provider = openid("acme", "https://login.acme.example")
    parameters = authorize_parameters(
        Client(provider=provider, client_id="id", client_secret="secret"),
        redirect_uri="https://tools.example/callback/acme",
        scopes=scopes,
        state="s",
        verifier="v" * 64,
        switches=switches,
    )
    return parse_qs(urlsplit(authorize_url("https://login.acme.example/a", parameters)).query)


def test_offline_access_is_requested_with_consent_prompt() -> None:
    assert "prompt" not in parameters_for(("openid",))
    assert parameters_for(("openid", "offline_access"))["prompt"] == ["consent"]


def test_account_selection_still_includes_consent_prompt() -> None:
    assert parameters_for(("openid",), switches=True)["prompt"] == ["select_account"]
    both = parameters_for(("openid", "offline_access"), switches=True)
    assert both["prompt"] == ["select_account consent"]
