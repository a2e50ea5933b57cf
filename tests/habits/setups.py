"""Wrong set-ups of providers and issuers, and the texts that each reader sees."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx

from tests.support.wrong_provider import HUB, ID, SECRET

_LONG = b'{"issuer": "' + b"x" * (1024 * 1024) + b'"}'
_UTF_16 = '{"access_token": "a-token", "token_type": "bearer"}'.encode("utf-16")
DISCOVERY = "/.well-known/openid-configuration"
# Microsoft Entra publishes these methods, and accepts public clients too.
_SECRETS = ["client_secret_post", "private_key_jwt", "client_secret_basic"]
_NO_METHODS = {"token_endpoint_auth_methods_supported": None}
_PUBLIC = {
    "error": "invalid_client",
    "error_description": "Client is public so neither client_assertion nor client_secret may come",
}


def _untrusted(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError(
        "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate in chain", request=request
    )


def _refused(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("All connection attempts failed", request=request)


def answers(status: int, **about: Any) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(status, **about)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A set-up, and the expected texts: parts of each text, or None if there must be no text.

    `found`: log at start and `elicit doctor`. `used`: log at use. `model`: None if connected.
    """

    there: Mapping[str, Any] = field(default_factory=dict[str, Any])
    declared: Mapping[str, Any] = field(default_factory=dict[str, Any])
    credentials: tuple[str, str] = (ID, SECRET)
    found: Sequence[str] | None
    used: Sequence[str] | None
    model: str | None
    person: str
    ends_at_provider: bool = False


_ISSUER = "issuer in [providers.hub] of elicit.toml must equal the issuer"
_NOT_SET_UP = "Only the server's operator can correct that"
_DIFFERS = "published an issuer that differs"
SETUPS: dict[str, Setup] = {
    "correct": Setup(found=None, used=None, model=None, person="is connected"),
    "wrong secret": Setup(
        credentials=(ID, "another"),
        found=[
            "refuses this server's client id or secret (invalid_client)",
            "correct ELICIT_HUB_CLIENT_ID and ELICIT_HUB_CLIENT_SECRET",
        ],
        used=["exchange.failed", "invalid_client", "correct ELICIT_HUB_CLIENT_ID"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "wrong client id": Setup(
        credentials=("another", SECRET),
        found=["refuses this server's client id or secret", "correct ELICIT_HUB_CLIENT_ID"],
        used=None,
        model=None,
        person="",
        ends_at_provider=True,
    ),
    "the JWKS endpoint fails": Setup(
        there={"replies": {"/jwks": answers(500)}},
        found=["the keys of Hub cannot be read", "/jwks answers HTTP 500"],
        used=["exchange.failed", "did not send its keys (HTTP 500)"],
        model="waits",
        person="Hub did not answer",
    ),
    "the JWKS has no keys": Setup(
        there={"replies": {"/jwks": answers(200, json={"keys": []})}},
        found=["contain no key that can verify its signatures (0 keys)", "add a key for"],
        used=["exchange.failed", "publishes no usable key", "add a key for"],
        model="publishes no usable key",
        person="publishes no usable key",
    ),
    "PAR required": Setup(
        there={"demands_par": True}, found=None, used=None, model=None, person="is connected"
    ),
    "PAR required, wrong secret": Setup(
        there={"demands_par": True},
        credentials=(ID, "another"),
        found=["refuses this server's client id or secret", "ELICIT_HUB_CLIENT_SECRET"],
        used=["request.not_pushed", "invalid_client"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "only private_key_jwt accepted": Setup(
        there={"methods": ["private_key_jwt"], "takes": "private_key_jwt"},
        found=[
            "accepts only private_key_jwt",
            'client_auth = "private_key_jwt"',
            "ELICIT_HUB_CLIENT_SECRET to the private key",
        ],
        used=["exchange.failed", "invalid_client", 'write client_auth = "private_key_jwt"'],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "only mutual TLS accepted": Setup(
        there={"methods": ["tls_client_auth"], "takes": "tls"},
        found=["accepts only tls_client_auth", "allow another one for this client"],
        used=["exchange.failed", "invalid_client", "allow another one for this client"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "public client with a secret": Setup(
        there={"methods": ["none"], "takes": "none"},
        found=["accepts only none", 'client_auth = "none"', "unset ELICIT_HUB_CLIENT_SECRET"],
        used=["exchange.failed", "invalid_client", "unset ELICIT_HUB_CLIENT_SECRET"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "public client with a secret, refused with an explanation": Setup(
        there={"replies": {"/token": answers(401, json=_PUBLIC)}},
        found=["neither client_assertion nor", 'client_auth = "none"', "unset ELICIT_HUB_CLIENT_"],
        used=["exchange.failed", "invalid_client", "unset ELICIT_HUB_CLIENT_SECRET"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "public client with a secret, metadata without `none`": Setup(
        there={"methods": _SECRETS, "takes": "none"},
        found=[
            "refuses the client secret sent as basic, and accepts this client without one",
            'write client_auth = "none" in [providers.hub] of elicit.toml',
            "unset ELICIT_HUB_CLIENT_SECRET",
        ],
        used=["exchange.failed", "invalid_client", "elicit doctor tries other ways"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "public client, metadata without `none`": Setup(
        there={"methods": _SECRETS, "takes": "none"},
        declared={"client_auth": "none"},
        credentials=(ID, ""),
        found=None,
        used=None,
        model=None,
        person="is connected",
    ),
    "public client, metadata without methods": Setup(
        there={"metadata": _NO_METHODS, "takes": "none"},
        declared={"client_auth": "none"},
        credentials=(ID, ""),
        found=None,
        used=None,
        model=None,
        person="is connected",
    ),
    "client secret, metadata without methods": Setup(
        there={"metadata": _NO_METHODS},
        found=None,
        used=None,
        model=None,
        person="is connected",
    ),
    "client has a secret, none set here": Setup(
        there={"methods": _SECRETS, "takes": "post"},
        declared={"client_auth": "none"},
        credentials=(ID, ""),
        found=[
            "refuses this server's client id or secret",
            'write client_auth = "post" in [providers.hub]',
            "ELICIT_HUB_CLIENT_SECRET to the secret",
        ],
        used=["exchange.failed", "invalid_client", "ELICIT_HUB_CLIENT_SECRET to the secret"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "client has a secret, none set here, metadata without methods": Setup(
        there={"metadata": _NO_METHODS},
        declared={"client_auth": "none"},
        credentials=(ID, ""),
        found=["correct ELICIT_HUB_CLIENT_ID; or, if the client has a secret there, change"],
        used=["exchange.failed", "invalid_client", "change client_auth in [providers.hub]"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "PAR required, only private_key_jwt accepted": Setup(
        there={"demands_par": True, "methods": ["private_key_jwt"], "takes": "private_key_jwt"},
        found=["accepts only private_key_jwt", 'client_auth = "private_key_jwt"'],
        used=["request.not_pushed", "invalid_client", 'write client_auth = "private_key_jwt"'],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "pairwise subjects": Setup(
        there={"metadata": {"subject_types_supported": ["pairwise"]}},
        found=None,
        used=None,
        model=None,
        person="is connected",
    ),
    "ID tokens of all clients signed with HS256": Setup(
        there={
            "metadata": {"id_token_signing_alg_values_supported": ["HS256"]},
            "algorithm": "HS256",
        },
        found=["signs ID tokens only with HS256", "id_token_signed_response_alg"],
        used=["exchange.failed", "signed with HS256", "id_token_signed_response_alg"],
        model="signed with HS256",
        person="signed with HS256",
    ),
    "ID tokens of this client signed with HS256": Setup(
        there={"algorithm": "HS256"},
        found=None,
        used=["exchange.failed", "signed with HS256"],
        model="signed with HS256",
        person="signed with HS256",
    ),
    "private certificate authority": Setup(
        there={"replies": {DISCOVERY: _untrusted}},
        found=["certificate that this server does not trust", "set SSL_CERT_FILE"],
        used=["provider.unusable", "does not trust"],
        model="certificate that this server does not trust",
        person="certificate that this server does not trust",
    ),
    "provider unreachable": Setup(
        there={"replies": {DISCOVERY: _refused}},
        found=["cannot be reached: Hub did not answer", "allow outgoing https"],
        used=["provider.failed", "did not answer"],
        model="waits",
        person="did not answer",
    ),
    "issuer with another trailing slash": Setup(
        there={"metadata": {"issuer": f"{HUB}/"}},
        found=[f"published the issuer '{HUB}/', and the configured one is '{HUB}'", _ISSUER],
        used=["provider.unusable", f"published the issuer '{HUB}/'"],
        model=_DIFFERS,
        person=_DIFFERS,
    ),
    "issuer with http instead of https": Setup(
        there={"metadata": {"issuer": "http://hub.example"}},
        found=["published the issuer 'http://hub.example'", _ISSUER],
        used=["provider.unusable", "'http://hub.example'"],
        model=_DIFFERS,
        person=_DIFFERS,
    ),
    "metadata of another issuer": Setup(
        there={
            "metadata": {
                "issuer": "https://evil.example",
                "token_endpoint": "https://evil.example/t",
            }
        },
        found=["published the issuer 'https://evil.example'", _ISSUER],
        used=["provider.unusable", "'https://evil.example'"],
        model=_DIFFERS,
        person=_DIFFERS,
    ),
    "metadata larger than a megabyte": Setup(
        there={"replies": {DISCOVERY: answers(200, content=_LONG)}},
        found=["reply is too large", "more than a megabyte"],
        used=["provider.unusable", "too large"],
        model="too large",
        person="too large",
    ),
    "metadata is a web page": Setup(
        there={"replies": {DISCOVERY: answers(200, html="<h1>Hello</h1>")}},
        found=["does not publish its endpoints (no JSON)", _ISSUER],
        used=["provider.unusable", "no JSON"],
        model="does not publish its endpoints",
        person="does not publish its endpoints",
    ),
    "no metadata": Setup(
        there={"replies": {DISCOVERY: answers(404)}},
        found=["does not publish its endpoints (HTTP 404)", _ISSUER],
        used=["provider.unusable", "HTTP 404"],
        model="does not publish its endpoints",
        person="does not publish its endpoints",
    ),
    "redirect URI not registered": Setup(
        there={"redirect_uri": "https://tools.example/callback/hub"},
        found=[
            "refuses to redirect people to http://127.0.0.1:",
            "register exactly this redirect URI for the client our-id",
        ],
        used=None,
        model=None,
        person="",
        ends_at_provider=True,
    ),
    "this server's clock is five minutes slow": Setup(
        there={"clock_is_ahead": timedelta(minutes=5)},
        found=["it is 300 s behind Hub's", "by NTP"],
        used=["exchange.failed", "time of this server's clock", "by NTP"],
        model="time of this server's clock",
        person="time of this server's clock",
    ),
    "DPoP required, not set": Setup(
        there={"demands_dpop": True},
        found=["requires DPoP (invalid_dpop_proof)", "write dpop = true in [providers.hub]"],
        used=["exchange.failed", "invalid_dpop_proof"],
        model="requires DPoP",
        person="requires DPoP",
    ),
    "resource indicator required": Setup(
        there={"replies": {"/token": answers(400, json={"error": "invalid_target"})}},
        found=["does not know the API that the tokens are for (invalid_target)", "set resource in"],
        used=["exchange.failed", "invalid_target", "set resource in [providers.hub]"],
        model="invalid_target",
        person="invalid_target",
    ),
    "resource indicator refused": Setup(
        there={"replies": {"/token": answers(400, json={"error": "invalid_target"})}},
        declared={"resource": "https://other.hub.example"},
        found=["does not know the API that the tokens are for", "correct resource in"],
        used=["exchange.failed", "invalid_target", "correct resource in [providers.hub]"],
        model="invalid_target",
        person="invalid_target",
    ),
    "DPoP required and set": Setup(
        there={"demands_dpop": True},
        declared={"dpop": True},
        found=None,
        used=None,
        model=None,
        person="is connected",
    ),
    "the token endpoint does not exist": Setup(
        there={"replies": {"/token": answers(404)}},
        found=[f"the token endpoint {HUB}/token answers HTTP 404", "correct issuer in"],
        used=["exchange.failed", "404"],
        model="did not issue an access token (HTTP 404)",
        person="did not issue an access token (HTTP 404)",
    ),
    "the token endpoint redirects": Setup(
        there={"replies": {"/token": answers(307, headers={"location": "https://evil.example/t"})}},
        found=["redirects to 'https://evil.example/t'", "no secret is sent elsewhere"],
        used=["exchange.failed", "307", "correct issuer in [providers.hub]"],
        model="did not issue an access token",
        person="did not issue an access token",
    ),
    "token response larger than a megabyte": Setup(
        there={"replies": {"/token": answers(200, content=_LONG)}},
        found=["reply is too large", "more than a megabyte"],
        used=["exchange.failed", "reply is too large", "more than a megabyte"],
        model="reply is too large",
        person="reply is too large",
    ),
    "token response in UTF-16": Setup(
        there={"replies": {"/token": answers(200, content=_UTF_16)}},
        found=["answers with a web page (HTTP 200)", "correct issuer in [providers.hub]"],
        used=["exchange.failed", "200", "correct issuer in [providers.hub]"],
        model="did not issue an access token (HTTP 200)",
        person="did not issue an access token (HTTP 200)",
    ),
    "client secret expected in the body": Setup(
        there={"methods": [], "takes": "post"},
        found=[
            "refuses the client secret sent as basic, and accepts it sent as post",
            'write client_auth = "post" in [providers.hub] of elicit.toml',
        ],
        used=["exchange.failed", "invalid_client", "elicit doctor tries other ways"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "client secret not percent-decoded": Setup(
        there={"takes": "basic_raw"},
        found=["accepts it sent as basic_raw", 'write client_auth = "basic_raw"'],
        used=["exchange.failed", "invalid_client", "elicit doctor tries other ways"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "client secret not percent-decoded, answered with unauthorized_client": Setup(
        there={"takes": "basic_raw", "refuses": "unauthorized_client"},
        found=["accepts it sent as basic_raw", 'write client_auth = "basic_raw"'],
        used=["exchange.failed", "unauthorized_client", "elicit doctor tries other ways"],
        model="did not issue an access token (unauthorized_client)",
        person="did not issue an access token (unauthorized_client)",
    ),
    "client id expected in the body as well": Setup(
        there={"takes": "both"},
        found=["accepts it sent as both", 'write client_auth = "both"'],
        used=["exchange.failed", "invalid_client", "elicit doctor tries other ways"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
}


@dataclass(frozen=True, kw_only=True)
class SignInSetup:
    """A set-up of the issuer where people sign in. `call` is the status of a call at `/mcp`.

    Without an `audience`, the access token is opaque. `claim` is the value of ELICIT_SUBJECT_CLAIM.
    """

    there: Mapping[str, Any] = field(default_factory=dict[str, Any])
    credentials: tuple[str, str] = (ID, SECRET)
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    audience: str = "mcp"
    claim: str = "sub"
    found: Sequence[str] | None
    used: Sequence[str] | None
    call: int = 200
    model: str | None = None
    person: str | None = None  # None: the person is signed in
    ends_at_provider: bool = False


_UNREADABLE = "did not answer, or this server couldn't read the answer"
_TROUBLE = "is not set up correctly, so nobody can use it"
SIGN_INS: dict[str, SignInSetup] = {
    "correct": SignInSetup(found=None, used=None),
    "PAR and DPoP required, DPoP set": SignInSetup(
        there={"demands_par": True, "demands_dpop": True},
        settings={"dpop": True},
        found=None,
        used=None,
    ),
    "wrong secret": SignInSetup(
        credentials=(ID, "another"),
        found=["correct ELICIT_ISSUER_CLIENT_ID and ELICIT_ISSUER_CLIENT_SECRET"],
        used=["signin.failed", "invalid_client", "correct ELICIT_ISSUER_CLIENT_ID"],
        person=_TROUBLE,
    ),
    "the JWKS endpoint fails": SignInSetup(
        there=SETUPS["the JWKS endpoint fails"].there,
        found=["/jwks answers HTTP 500"],
        used=["issuer.unavailable", "did not send its keys (HTTP 500)"],
        call=503,
        model="did not send its keys (HTTP 500)",
        person=_UNREADABLE,
    ),
    "issuer with another trailing slash": SignInSetup(
        there=SETUPS["issuer with another trailing slash"].there,
        found=["ELICIT_ISSUER must equal the issuer", f"'{HUB}/', and the configured one is"],
        used=["signin.failed", f"published the issuer '{HUB}/'", "ELICIT_ISSUER must equal"],
        call=503,
        model="differs from the configured one",
        person=_TROUBLE,
    ),
    "private certificate authority": SignInSetup(
        there=SETUPS["private certificate authority"].there,
        found=["set SSL_CERT_FILE"],
        used=["signin.failed", "does not trust", "set SSL_CERT_FILE"],
        call=503,
        model="does not trust",
        person=_TROUBLE,
    ),
    "pairwise subjects": SignInSetup(
        there=SETUPS["pairwise subjects"].there,
        found=["gives each client a different subject", "set ELICIT_SUBJECT_CLAIM"],
        used=None,
    ),
    "ID token without the claim of `ELICIT_SUBJECT_CLAIM`": SignInSetup(
        claim="employee_id",
        found=None,
        used=["signin.failed", "no usable employee_id", "or set ELICIT_SUBJECT_CLAIM"],
        person="lacks a value that this server needs to identify you",
    ),
    "resource indicator required": SignInSetup(
        there=SETUPS["resource indicator required"].there,
        found=["does not know the API", "issue this client tokens that name no API (resource)"],
        used=["signin.failed", "invalid_target", "tokens that name no API"],
        person=_TROUBLE,
    ),
    "DPoP required, not set": SignInSetup(
        there=SETUPS["DPoP required, not set"].there,
        found=["requires DPoP", "set ELICIT_ISSUER_DPOP=1"],
        used=["signin.failed", "requires DPoP", "set ELICIT_ISSUER_DPOP=1"],
        person=_TROUBLE,
    ),
    "only private_key_jwt accepted": SignInSetup(
        there=SETUPS["only private_key_jwt accepted"].there,
        found=["set ELICIT_ISSUER_CLIENT_AUTH=private_key_jwt"],
        used=["signin.failed", "invalid_client", "set ELICIT_ISSUER_CLIENT_AUTH=private_key_jwt"],
        person=_TROUBLE,
    ),
    "wrong client id": SignInSetup(
        credentials=("another", SECRET),
        found=["correct ELICIT_ISSUER_CLIENT_ID"],
        used=None,
        ends_at_provider=True,
    ),
    "redirect URI not registered": SignInSetup(
        there={"redirect_uri": "https://tools.example/signin/callback"},
        found=["register exactly this redirect URI for the client our-id"],
        used=None,
        ends_at_provider=True,
    ),
    "PAR required, wrong secret": SignInSetup(
        there=SETUPS["PAR required, wrong secret"].there,
        credentials=(ID, "another"),
        found=["correct ELICIT_ISSUER_CLIENT_ID and ELICIT_ISSUER_CLIENT_SECRET"],
        used=["signin.failed", "invalid_client"],
        person=_TROUBLE,
    ),
    "only mutual TLS accepted": SignInSetup(
        there=SETUPS["only mutual TLS accepted"].there,
        found=["accepts only tls_client_auth"],
        used=["signin.failed", "invalid_client", "allow another one for this client"],
        person=_TROUBLE,
    ),
    "public client with a secret": SignInSetup(
        there=SETUPS["public client with a secret"].there,
        found=["set ELICIT_ISSUER_CLIENT_AUTH=none, and unset ELICIT_ISSUER_CLIENT_SECRET"],
        used=["signin.failed", "invalid_client", "unset ELICIT_ISSUER_CLIENT_SECRET"],
        person=_TROUBLE,
    ),
    "public client with a secret, refused with an explanation": SignInSetup(
        there=SETUPS["public client with a secret, refused with an explanation"].there,
        found=["set ELICIT_ISSUER_CLIENT_AUTH=none, and unset ELICIT_ISSUER_CLIENT_SECRET"],
        used=["signin.failed", "invalid_client", "set ELICIT_ISSUER_CLIENT_AUTH=none"],
        person=_TROUBLE,
    ),
    "public client, metadata without `none`": SignInSetup(
        there=SETUPS["public client, metadata without `none`"].there,
        credentials=(ID, ""),
        settings={"client_auth": "none"},
        found=None,
        used=None,
    ),
    "client has a secret, none set here": SignInSetup(
        there=SETUPS["client has a secret, none set here"].there,
        credentials=(ID, ""),
        settings={"client_auth": "none"},
        found=["set ELICIT_ISSUER_CLIENT_AUTH=post, and ELICIT_ISSUER_CLIENT_SECRET to the secret"],
        used=["signin.failed", "invalid_client", "ELICIT_ISSUER_CLIENT_SECRET to the secret"],
        person=_TROUBLE,
    ),
    "PAR required, only private_key_jwt accepted": SignInSetup(
        there=SETUPS["PAR required, only private_key_jwt accepted"].there,
        found=["set ELICIT_ISSUER_CLIENT_AUTH=private_key_jwt"],
        used=["signin.failed", "set ELICIT_ISSUER_CLIENT_AUTH=private_key_jwt"],
        person=_TROUBLE,
    ),
    "client secret expected in the body": SignInSetup(
        there=SETUPS["client secret expected in the body"].there,
        found=["set ELICIT_ISSUER_CLIENT_AUTH=post"],
        used=["signin.failed", "invalid_client", "elicit doctor tries other ways"],
        person=_TROUBLE,
    ),
    "the JWKS has no keys": SignInSetup(
        there=SETUPS["the JWKS has no keys"].there,
        found=["contain no key that can verify its signatures (0 keys)"],
        used=["issuer.unavailable", "no usable keys", "signin.failed", "add a key for"],
        call=503,
        model="no usable keys",
        person=_TROUBLE,
    ),
    "ID tokens of all clients signed with HS256": SignInSetup(
        there=SETUPS["ID tokens of all clients signed with HS256"].there,
        found=["signs ID tokens only with HS256", "id_token_signed_response_alg"],
        used=["signin.failed", "signed with HS256", "id_token_signed_response_alg"],
        person=_TROUBLE,
    ),
    "ID tokens of this client signed with HS256": SignInSetup(
        there=SETUPS["ID tokens of this client signed with HS256"].there,
        found=None,
        used=["signin.failed", "signed with HS256", "id_token_signed_response_alg"],
        person=_TROUBLE,
    ),
    "provider unreachable": SignInSetup(
        there=SETUPS["provider unreachable"].there,
        found=["cannot be reached", "allow outgoing https"],
        used=["issuer.unavailable", "did not answer"],
        call=503,
        model="did not answer",
        person=_UNREADABLE,
    ),
    "issuer with http instead of https": SignInSetup(
        there=SETUPS["issuer with http instead of https"].there,
        found=["ELICIT_ISSUER must equal the issuer", "'http://hub.example'"],
        used=["issuer.unavailable", "'http://hub.example'"],
        call=503,
        model="differs from the configured one",
        person=_TROUBLE,
    ),
    "metadata of another issuer": SignInSetup(
        there=SETUPS["metadata of another issuer"].there,
        found=["ELICIT_ISSUER must equal the issuer", "'https://evil.example'"],
        used=["issuer.unavailable", "'https://evil.example'"],
        call=503,
        model="differs from the configured one",
        person=_TROUBLE,
    ),
    "metadata larger than a megabyte": SignInSetup(
        there=SETUPS["metadata larger than a megabyte"].there,
        found=["reply is too large", "more than a megabyte"],
        used=["issuer.unavailable", "too large"],
        call=503,
        model="too large",
        person=_TROUBLE,
    ),
    "metadata is a web page": SignInSetup(
        there=SETUPS["metadata is a web page"].there,
        found=["does not publish its endpoints (no JSON)"],
        used=["issuer.unavailable", "no JSON"],
        call=503,
        model="does not publish its endpoints",
        person=_TROUBLE,
    ),
    "no metadata": SignInSetup(
        there=SETUPS["no metadata"].there,
        found=["does not publish its endpoints (HTTP 404)"],
        used=["issuer.unavailable", "HTTP 404"],
        call=503,
        model="does not publish its endpoints",
        person=_TROUBLE,
    ),
    "this server's clock is five minutes slow": SignInSetup(
        there=SETUPS["this server's clock is five minutes slow"].there,
        found=["it is 300 s behind", "by NTP"],
        used=["signin.failed", "time of this server's clock", "by NTP"],
        call=401,
        model="not issued for this server",
        person=_TROUBLE,
    ),
    "the token endpoint does not exist": SignInSetup(
        there=SETUPS["the token endpoint does not exist"].there,
        found=[f"the token endpoint {HUB}/token answers HTTP 404"],
        used=["signin.failed", "404", "correct ELICIT_ISSUER"],
        person=_TROUBLE,
    ),
    "the token endpoint answers with a web page": SignInSetup(
        there={"replies": {"/token": answers(200, html="<h1>Hello</h1>")}},
        found=["answers with a web page (HTTP 200)", "correct ELICIT_ISSUER"],
        used=["signin.failed", "HTTP 200", "correct ELICIT_ISSUER"],
        person=_TROUBLE,
    ),
    "token response larger than a megabyte": SignInSetup(
        there=SETUPS["token response larger than a megabyte"].there,
        found=["reply is too large", "more than a megabyte"],
        used=["signin.failed", "reply is too large", "more than a megabyte"],
        person=_TROUBLE,
    ),
    "the token endpoint fails": SignInSetup(
        there={"replies": {"/token": answers(503)}},
        found=None,
        used=["signin.failed", "HTTP 503"],
        person=_UNREADABLE,
    ),
    "authorization code refused": SignInSetup(
        there={"replies": {"/token": answers(400, json={"error": "invalid_grant"})}},
        found=None,
        used=["signin.failed", "invalid_grant"],
        person=_UNREADABLE,
    ),
    "the JWKS endpoint does not exist": SignInSetup(
        there={"replies": {"/jwks": answers(404)}},
        found=["/jwks answers HTTP 404"],
        used=["signin.failed", "no usable keys", "add a key for"],
        call=503,
        model="no usable keys",
        person=_TROUBLE,
    ),
    "rate limit at the metadata endpoint": SignInSetup(
        there={"replies": {DISCOVERY: answers(429)}},
        found=["does not publish its endpoints (HTTP 429)"],
        used=["issuer.unavailable", "HTTP 429"],
        call=503,
        model="does not publish its endpoints",
        person=_UNREADABLE,
    ),
    "the token endpoint redirects": SignInSetup(
        there=SETUPS["the token endpoint redirects"].there,
        found=["redirects to 'https://evil.example/t'", "no secret is sent elsewhere"],
        used=["signin.failed", "307", "correct ELICIT_ISSUER"],
        person=_TROUBLE,
    ),
    "opaque access tokens": SignInSetup(
        audience="",
        found=None,
        used=["bearer.refused", "opaque"],
        call=401,
        model="not issued for this server",
    ),
    "access tokens for another audience": SignInSetup(
        audience="other",
        found=None,
        used=["bearer.refused", "audience"],
        call=401,
        model="not issued for this server",
    ),
}
