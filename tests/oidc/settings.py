"""The configurations of oidc-provider in the tests: each client with each kind of signing key.

`python -m tests.oidc` tries all of them, and writes the table into docs/how-to/sign-in.md. A test
tries the diagonal of the table: each client and each kind of keys at least once.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from joserfc.jwk import ECKey

from tests.oidc.connected import WORDS, bearer, known_at, our_settings, served, sign_in
from tests.oidc.env import OpenIdProvider, real_time
from tests.support.connections_page import main_text, press
from tests.support.mcp_server import MODERN, new_browser, server_env
from tests.support.oauth_env import ends, oauth_env

KEY: Final = ECKey.generate_key("P-256", {"kid": "ours"})
LONG_SECRET: Final = "our:secret/%+ that is long enough to sign with"
_PRIVATE: Final = {
    "token_endpoint_auth_method": "private_key_jwt",
    "token_endpoint_auth_signing_alg": "ES256",
    "client_secret": None,
    "jwks": {"keys": [{**KEY.as_dict(private=False), "alg": "ES256", "use": "sig"}]},
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A configuration of the provider, our registration there, and our settings for it.

    `provider` configures the provider, `client` our registration there. `declared` has changes of
    the provider's declaration, and `variables` has the matching environment variables for sign-in.
    `person` is the expected id and label of the account. The id is None if the provider generates
    it. `scope` is what the person's assistant requests.
    """

    provider: Mapping[str, Any] = field(default_factory=dict[str, Any])
    client: Mapping[str, Any] = field(default_factory=dict[str, Any])
    resource: Mapping[str, Any] = field(default_factory=dict[str, Any])
    declared: Mapping[str, Any] = field(default_factory=dict[str, Any])
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    secret: str | None = None
    person: tuple[str | None, str] = ("alice", "alice@acme.example")
    scope: str = "openid tools"
    me: str = "/me"  # the path of the API
    lasts: timedelta = timedelta(minutes=4, seconds=30)  # until a refresh is due
    revokes: bool = True

    def with_keys(self, keys: "Setting") -> "Setting":
        provider, client = {**self.provider, **keys.provider}, {**self.client, **keys.client}
        return replace(self, provider=provider, client=client)


_DPOP: Final = Setting(
    provider={"dpop": True},
    client={"dpop_bound_access_tokens": True},
    declared={"dpop": True},
    variables={"ELICIT_ISSUER_DPOP": "1"},
)
CLIENTS: Final[Mapping[str, Setting]] = {
    "client_secret_basic": Setting(),
    "client_secret_post, PAR offered": Setting(
        provider={"par": "offered"},
        client={"token_endpoint_auth_method": "client_secret_post"},
        declared={"client_auth": "post"},
        variables={"ELICIT_ISSUER_CLIENT_AUTH": "post"},
    ),
    "private_key_jwt, PAR required": Setting(
        provider={"par": "required"},
        client=_PRIVATE,
        declared={"client_auth": "private_key_jwt"},
        variables={"ELICIT_ISSUER_CLIENT_AUTH": "private_key_jwt"},
        secret=json.dumps(KEY.as_dict(private=True)),
    ),
    "client_secret_jwt, opaque access tokens": Setting(
        client={
            "token_endpoint_auth_method": "client_secret_jwt",
            "token_endpoint_auth_signing_alg": "HS256",
            "client_secret": LONG_SECRET,
        },
        resource={"format": "opaque"},
        declared={"client_auth": "client_secret_jwt"},
        variables={"ELICIT_ISSUER_CLIENT_AUTH": "client_secret_jwt", "ELICIT_INTROSPECT": "1"},
        secret=LONG_SECRET,
    ),
    "public client": Setting(
        client={"token_endpoint_auth_method": "none", "client_secret": None},
        declared={"client_auth": "none"},
        variables={"ELICIT_ISSUER_CLIENT_AUTH": "none"},
        secret="",
    ),
    "DPoP with nonces": _DPOP,
    "DPoP, PAR required": replace(_DPOP, provider={"dpop": True, "par": "required"}),
}
KEYS: Final[Mapping[str, Setting]] = {
    **{
        alg: Setting(
            provider={"keys": [{"kid": alg, "alg": alg}]},
            client={"id_token_signed_response_alg": alg},
        )
        for alg in ("ES256", "RS256", "PS256", "EdDSA")
    },
    "ES256, signed userinfo": Setting(client={"userinfo_signed_response_alg": "ES256"}),
}

# This server accepts every client with any secret, but its metadata offers public clients only.
MOCK_SERVER: Final = Setting(
    declared={"client_auth": "none", "unmentioned": ("openid", "email", "offline_access")},
    variables={"ELICIT_ISSUER_CLIENT_AUTH": "none"},
    secret="",
    person=("johndoe", "johndoe"),
    me="/userinfo",
    lasts=timedelta(minutes=59, seconds=30),
)

# This server has no revocation endpoint and no OpenID Connect, so nobody signs in there.
NODE_OAUTH2_SERVER: Final = Setting(lasts=timedelta(minutes=59, seconds=30), revokes=False)


async def check_account(acme: OpenIdProvider, setting: Setting) -> None:
    """Connect an account, call the API, refresh the account, and disconnect it."""
    clock = real_time()
    declared = acme.declared("acme", **setting.declared)
    async with (
        oauth_env(
            providers=[declared],
            clock=clock,
            played=False,
            change=lambda settings, sandbox: replace(
                settings,
                credentials={
                    "acme": (
                        sandbox.client_id,
                        sandbox.client_secret if setting.secret is None else setting.secret,
                    )
                },
            ),
        ) as here,
        new_browser() as browser,
    ):
        client = our_settings(here, "/callback/acme", **setting.client)
        acme.configure(clients=[client], **setting.provider)
        asked, person = here.ask("offline_access", "email", provider=declared), await here.person()
        leaves = await person.go_on(await asked.link())
        callback = await acme.guest("alice", browser=browser).walk(leaves)
        await ends(person, await person.visit(callback))
        account = await asked.account()
        id, label = setting.person
        assert (account.id, account.label) == (id or account.id, label)
        async with account.client() as api:
            assert (await api.get(setting.me)).status_code == 200
        clock.tick(seconds=setting.lasts.total_seconds())
        (connection,) = await here.connections()
        assert connection.refresh_token is not None
        renewed = await here.service.kinds.accounts.keys.working(connection)
        assert renewed is not None
        assert renewed.access_token != connection.access_token
        assert renewed.dpop_key == connection.dpop_key
        page = await press(await here.person(), here, "/disconnect")
        assert ("has confirmed that access is revoked" in main_text(page)) is setting.revokes
        assert "is disconnected" in page.heading


async def check_sign_in(acme: OpenIdProvider, setting: Setting) -> None:
    """Call `/mcp` as alice, and let alice sign in to see the question."""
    more = dict(setting.variables)
    if setting.secret is not None:
        more["ELICIT_ISSUER_CLIENT_SECRET"] = setting.secret
    provider, client = dict(setting.provider), dict(setting.client)
    if provider.get("par") == "required":  # only for our client: assistants do not push requests
        provider["par"], client["require_pushed_authorization_requests"] = "offered", True
    who = known_at(acme, more, client=client, resource=setting.resource, **provider)
    async with server_env(served(), who=who) as env, new_browser() as browser:
        alice = acme.guest("alice", browser=browser)
        headers = await bearer(env, alice, scope=setting.scope)
        async with env.caller(MODERN, headers=headers) as caller:
            caller.begin("visit")
            person, link = await env.person(), await caller.link()
            assert WORDS in (await sign_in(person, await person.visit(link), alice)).text
