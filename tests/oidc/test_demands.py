"""Accounts at a certified provider that demands more than the basic flow, and the doctor there."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from joserfc.jwk import ECKey

from flows.oauth.registered_client import RegisteredClient
from flows.oauth.registration import examined
from tests.oidc.connected import ours
from tests.oidc.env import Newcomer, OpenIdProvider, real_time
from tests.support.mcp_server import new_browser
from tests.support.oauth_env import ends, oauth_env
from webapp.http.client import Outbound

_KEY = ECKey.generate_key("P-256", {"kid": "ours"})


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The provider's configuration, our registration there, and our declaration of it."""

    there: Mapping[str, Any] = field(default_factory=dict[str, Any])
    client: Mapping[str, Any] = field(default_factory=dict[str, Any])
    declared: Mapping[str, Any] = field(default_factory=dict[str, Any])
    secret: str | None = None


DEMANDS = {
    "pushed requests offered": Demand(there={"par": "offered"}),
    "pushed requests required": Demand(there={"par": "required"}),
    "Ed25519": Demand(
        there={"keys": [{"kid": "ed", "alg": "EdDSA"}]},
        client={"id_token_signed_response_alg": "EdDSA"},
    ),
    "signed userinfo": Demand(client={"userinfo_signed_response_alg": "ES256"}),
    "DPoP with nonces": Demand(
        there={"dpop": True}, client={"dpop_bound_access_tokens": True}, declared={"dpop": True}
    ),
    "DPoP and pushed requests": Demand(
        there={"dpop": True, "par": "required"},
        client={"dpop_bound_access_tokens": True},
        declared={"dpop": True},
    ),
    "private key and pushed requests": Demand(
        there={"par": "required"},
        client={
            "token_endpoint_auth_method": "private_key_jwt",
            "token_endpoint_auth_signing_alg": "ES256",
            "client_secret": None,
            "jwks": {"keys": [{**_KEY.as_dict(private=False), "alg": "ES256", "use": "sig"}]},
        },
        declared={"client_auth": "private_key_jwt"},
        secret=json.dumps(_KEY.as_dict(private=True)),
    ),
}

# finding: XO7, XO8


@pytest.mark.parametrize("demand", DEMANDS.values(), ids=DEMANDS)
async def test_account_is_connected_called_and_renewed(
    acme: OpenIdProvider, newcomer: Newcomer, demand: Demand
) -> None:
    clock = real_time()
    declared = acme.declared("acme", **demand.declared)
    async with oauth_env(
        providers=[declared],
        clock=clock,
        played=False,
        change=lambda settings, sandbox: replace(
            settings,
            credentials={"acme": (sandbox.client_id, demand.secret or sandbox.client_secret)},
        ),
    ) as here:
        id, _ = here.settings.credentials["acme"]
        client = {**ours(here, "/callback/acme"), "client_id": id, **demand.client}
        acme.configure(clients=[_without_none(client)], **demand.there)
        asked, person = here.ask("offline_access", "email", provider=declared), await here.person()
        leaves = await person.go_on(await asked.link())
        callback = await (await newcomer(acme, "alice")).walk(leaves)
        await ends(person, await person.visit(callback))
        account = await asked.account()
        assert (account.id, account.label) == ("alice", "alice@acme.example")
        async with account.client() as api:
            assert (await api.get("/me")).status_code == 200
        clock.tick(minutes=4, seconds=30)
        (connection,) = await here.connections()
        assert connection.refresh_token is not None
        renewed = await here.service.kinds.accounts.keys.working(connection)
        assert renewed is not None
        assert renewed.access_token != connection.access_token
        assert renewed.dpop_key == connection.dpop_key


@pytest.mark.parametrize("demand", DEMANDS.values(), ids=DEMANDS)
@pytest.mark.parametrize("fault", [None, "secret", "redirect", "id"])
async def test_doctor_tells_right_registration_from_wrong_ones(
    acme: OpenIdProvider, demand: Demand, fault: str | None
) -> None:
    clock, redirect = real_time(), "http://127.0.0.1:1/callback/acme"
    our = acme.client("acme", **demand.declared)
    secret = demand.secret or our.client_secret
    registered = {
        "client_id": our.client_id,
        "client_secret": our.client_secret,
        "redirect_uris": [redirect],
        **demand.client,
    }
    acme.configure(clients=[_without_none(registered)], **demand.there)
    other = json.dumps(ECKey.generate_key("P-256", {"kid": "ours"}).as_dict(private=True))
    if fault == "secret":
        secret = "another" if demand.secret is None else other
    our = replace(our, client_secret=secret)
    if fault == "id":
        our = replace(our, client_id="nobody")
    address = f"{redirect}/other" if fault == "redirect" else redirect
    async with new_browser() as http:
        outbound = Outbound(http, allow_loopback=True)
        registration = RegisteredClient(client=our, redirect_uri=address)
        report = await outbound.run(examined(registration, now=clock()))
    wrong = " ".join(f"{one.says} {one.fix}" for one in report.findings if one.fix and one.is_wrong)
    words = {
        None: "",
        "secret": "ELICIT_ACME_CLIENT_SECRET",
        "redirect": "register exactly this redirect URI",
        "id": "ELICIT_ACME_CLIENT_ID",
    }[fault]
    assert (words in wrong) if words else (wrong == ""), report


def _without_none(registered: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in registered.items() if value is not None}
