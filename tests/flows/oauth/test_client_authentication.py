"""Client authentication in every request, at servers that each accept a single method."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest
from joserfc import jws, jwt
from joserfc.jwk import OctKey, RSAKey

from flows.errors import ElicitError, Failed
from flows.oauth.access_token import Resource
from flows.oauth.authorization_code import OauthFlow
from flows.oauth.declaration import TokenExchange
from flows.oauth.device_flow import poll, start
from flows.oauth.provider import Client, PersonProbe
from flows.oauth.refresh import refresh
from flows.oauth.revocation import revoke
from flows.oauth.token_errors import TokenRefused
from flows.oauth.token_exchange import SubjectToken, exchanged
from flows.providers import openid
from tests.support.account_life import METADATA, a_connection, form_of
from tests.support.clock import NOON, Clock
from tests.support.oauth_flow import ISSUER, TRIP, an_elicitation
from tests.support.strict_provider import KEY, secret_for
from webapp.identity.introspection import Introspection
from webapp.identity.issuer import Issuer

# Each method that a server's metadata can name, and the `client_auth` that the docs recommend.
METHODS = {
    "client_secret_basic": "basic",
    "client_secret_post": "basic",  # the metadata chooses between `basic` and `post`
    "private_key_jwt": "private_key_jwt",
    "client_secret_jwt": "client_secret_jwt",
    "none": "none",
}
DEVICE_CODE = {
    "device_code": "a-code",
    "user_code": "WDJB",
    "verification_uri": f"{ISSUER}/enter",
    "expires_in": 900,
}
MINE = SubjectToken(text="a.persons.token", issuer=ISSUER, subject="ann", claim=("sub",))


class Server:
    """A fake authorization server, which answers each POST with the error `invalid_client`.

    With `issues_code` it issues a device code instead. `sent` lists all requests except
    those for metadata and keys.
    """

    def __init__(self, method: str, **metadata: Any) -> None:
        self.issues_code = False
        self.sent = list[httpx.Request]()
        self.metadata: Mapping[str, Any] = {
            **METADATA,
            "jwks_uri": f"{ISSUER}/jwks",
            "introspection_endpoint": f"{ISSUER}/introspect",
            "token_endpoint_auth_methods_supported": [method],
            **metadata,
        }

    def reply(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/jwks":
            return httpx.Response(200, json={"keys": [KEY.as_dict(private=False)]})
        if request.method == "GET":
            return httpx.Response(200, json=self.metadata)
        self.sent.append(request)
        if request.url.path == "/device" and self.issues_code:
            return httpx.Response(200, json=DEVICE_CODE)
        return httpx.Response(401, json={"error": "invalid_client"})

    def run(self, talk: Any) -> Any:
        """Answer the requests of `talk` until it ends. Return its result or the raised error."""
        try:
            request = next(talk)
            while True:
                request = talk.send(self.reply(request))
        except StopIteration as stop:
            return stop.value
        except ElicitError as error:
            return error


def a_client(client_auth: str) -> Client:
    declared: Any = {"client_auth": client_auth}
    provider = replace(openid("acme", ISSUER), **declared)
    return Client(provider=provider, client_id="our id", client_secret=secret_for(client_auth))


def left(client: Client, server: Server) -> Any:
    flow, provider = OauthFlow({"acme": client}), client.provider
    going = an_elicitation(provider, attempt_data=flow.prepare(an_elicitation(provider), TRIP))
    return server.run(flow.begin(going, TRIP))


def pushes(client: Client, server: Server) -> Any:
    server.metadata = {**server.metadata, "pushed_authorization_request_endpoint": f"{ISSUER}/par"}
    return left(client, server)


def redeems(client: Client, server: Server) -> Any:
    stored = left(client, server).attempt_data
    away = an_elicitation(client.provider, attempt_data=stored)
    return server.run(OauthFlow({"acme": client}).finish(away, code="the-code", now=NOON))


def refreshes(client: Client, server: Server) -> Any:
    held = a_connection(client.provider, token_endpoint=None, client_auth=None)
    return server.run(refresh(client, held, now=NOON))


def gets_own_token(client: Client, server: Server) -> Any:
    held = a_connection(client.provider, token_endpoint=None, client_auth=None, requested=("read",))
    return server.run(refresh(client, held, now=NOON))


def revokes(client: Client, server: Server) -> Any:
    held = a_connection(client.provider, token_endpoint=None, client_auth=None)
    return server.run(revoke(client, held, now=NOON))


def asks_for_user_code(client: Client, server: Server) -> Any:
    return server.run(start(client, ("read",), now=NOON))


def polls(client: Client, server: Server) -> Any:
    server.issues_code = True
    code = asks_for_user_code(client, server)
    server.sent.clear()
    return server.run(poll(client, code, now=NOON))


def exchanges(client: Client, server: Server, kind: Any = "token_exchange") -> Any:
    how = TokenExchange(issuer=ISSUER, kind=kind, audience="https://api.example")
    probe = PersonProbe(url=f"{ISSUER}/me", id="id", label="login")
    provider = replace(client.provider, exchange=how, person=probe)
    client = replace(client, provider=provider)
    return server.run(exchanged(client, MINE, scopes=(), issuer_client=client, now=NOON))


def asks_for_assertion(client: Client, server: Server) -> Any:
    return exchanges(client, server, "id_jag")


REQUESTS: dict[str, Callable[[Client, Server], Any]] = {
    "/par": pushes,
    "/token code": redeems,
    "/token refresh": refreshes,
    "/token client_credentials": gets_own_token,
    "/revoke": revokes,
    "/device": asks_for_user_code,
    "/token device_code": polls,
    "/token exchange": exchanges,
    "/token assertion": asks_for_assertion,
}


def method_of(request: httpx.Request) -> str:
    """Return the method by which the request authenticates. Fail if there is more than one."""
    values, header = form_of(request), request.headers.get("authorization")
    found = list[str]()
    if header is not None:
        assert header.startswith("Basic ")
        found.append("client_secret_basic")
    if "client_secret" in values:
        found.append("client_secret_post")
    if "client_assertion" in values:
        assertion = values["client_assertion"]
        is_key = jws.extract_compact(assertion.encode()).headers()["alg"] == "RS256"
        key: Any = RSAKey.import_key(KEY.as_dict(private=False))
        if not is_key:
            key = OctKey.import_key(secret_for("client_secret_jwt"))
        claims = jwt.decode(assertion, key, algorithms=["RS256", "HS256"]).claims
        assert (claims["iss"], claims["aud"]) == ("our id", str(request.url))
        found.append("private_key_jwt" if is_key else "client_secret_jwt")
    if not found:
        assert values["client_id"] == "our id"
        found.append("none")
    (method,) = found
    return method


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", REQUESTS)
def test_request_authenticates_by_the_method_that_the_server_names(name: str, method: str) -> None:
    server = Server(method)
    REQUESTS[name](a_client(METHODS[method]), server)
    assert [(one.url.path, method_of(one)) for one in server.sent] == [
        (name.split(maxsplit=1)[0], method)
    ]


@pytest.mark.parametrize("before", ["basic", "post", "none", "private_key_jwt"])
@pytest.mark.parametrize("method", ["private_key_jwt", "none"])
@pytest.mark.parametrize("send", [refresh, revoke], ids=["refresh", "revoke"])
def test_existing_account_uses_the_method_that_the_operator_changed_to(
    send: Any, method: str, before: str
) -> None:
    server, client = Server(method), a_client(method)
    held = a_connection(client.provider, refresh_token="r", client_auth=before)
    server.run(send(client, held, now=NOON))
    (request,) = server.sent
    assert method_of(request) == method


@pytest.mark.parametrize(("method", "accepted"), [("basic", "post"), ("post", "basic")])
def test_existing_account_still_uses_the_method_that_the_metadata_named(
    method: str, accepted: str
) -> None:
    server, client = Server("client_secret_" + accepted), a_client(method)
    server.run(refresh(client, a_connection(client.provider, client_auth=accepted), now=NOON))
    (request,) = server.sent
    assert method_of(request) == f"client_secret_{accepted}"


@pytest.mark.parametrize("name", [one for one in REQUESTS if one != "/revoke"])
def test_refused_client_is_reported_as_the_operators_problem(name: str) -> None:
    error = REQUESTS[name](a_client("basic"), Server("client_secret_basic"))
    assert isinstance(error, TokenRefused)
    assert error.refusal.means == "client"


@pytest.mark.parametrize("name", ["/par", "/token code", "/device", "/token exchange"])
def test_refusal_names_the_methods_of_the_metadata(name: str) -> None:
    error = REQUESTS[name](a_client("basic"), Server("private_key_jwt"))
    assert error.refusal.methods == ("private_key_jwt",)


@pytest.mark.parametrize("method", METHODS)
async def test_introspection_authenticates_by_the_method_that_the_server_names(method: str) -> None:
    assert await introspected_by(Server(method), METHODS[method]) == method


async def test_revocation_and_introspection_use_methods_of_their_endpoint() -> None:
    others = {
        f"{name}_endpoint_auth_methods_supported": ["client_secret_post"]
        for name in ("revocation", "introspection")
    }
    server = Server("client_secret_basic", **others)
    revokes(a_client("basic"), server)
    (request,) = server.sent
    assert (request.url.path, method_of(request)) == ("/revoke", "client_secret_post")
    assert await introspected_by(server, "basic") == "client_secret_post"


async def introspected_by(server: Server, client_auth: str) -> str:
    """Check a token by introspection. Return the method by which this server authenticated."""
    server.sent.clear()
    client, clock = a_client(client_auth), Clock()

    async def fetch(request: httpx.Request) -> httpx.Response:
        return server.reply(request)

    issuer = Issuer(client.provider, fetch=fetch, clock=clock)
    resource = Resource(url="https://tools.example/mcp", issuer=ISSUER)
    introspection = Introspection(issuer=issuer, client=client, resource=resource, clock=clock)
    with pytest.raises(Failed, match="HTTP 401"):
        await introspection.verified("an opaque token", sender="192.0.2.1")
    await issuer.aclose()
    (request,) = server.sent
    assert request.url.path == "/introspect"
    return method_of(request)
