"""The accounts that a program's users have connected, over the HTTP API."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from flows import elicit
from flows.oauth.connection import Connection, lapse
from flows.providers import github
from tests.support.api_program import ACCOUNT, Program, program_at
from tests.support.asking_env import AskingEnv, asking_env
from tests.support.chains import AUDITED, audit_entries_of
from tests.support.living import living
from tests.support.refusals import ENDED, OPERATORS
from webapp.api.asking import owner_of_user
from webapp.identity.api_keys import KeyScope
from webapp.records.ids import tail_of

ANN = {"user": "ann"}


@pytest.fixture
async def teller(here: AskingEnv) -> AsyncIterator[Program]:
    """Open the shop with an API key that may read access tokens."""
    async with program_at(here, also=(KeyScope.TOKENS,)) as program:
        yield program


async def listed(program: Program, user: str = "ann") -> list[dict[str, Any]]:
    answer = await program.at("accounts", params={"user": user})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["accounts"]
    return found


async def the_account(here: AskingEnv) -> Connection:
    (found,) = await here.connections()
    return found


async def test_user_account_is_listed_and_read_without_access_token(
    here: AskingEnv, shop: Program
) -> None:
    id = await shop.connected(here)
    (answer,) = await listed(shop)
    assert (answer["id"], answer["provider"], answer["status"]) == (id, "github", "connected")
    read = await shop.at(f"accounts/{id}", params=ANN)
    assert read.json() == answer
    assert (await the_account(here)).access_token not in read.text
    assert await listed(shop, "bob") == []


async def test_account_is_visible_to_program_which_asked_and_hidden_from_others(
    here: AskingEnv, shop: Program
) -> None:
    id = await shop.connected(here)
    async with program_at(here, program="other") as other:
        assert await listed(other) == []
        for verb in ("", "/proxy"):
            refused = await other.at(f"accounts/{id}{verb}", params={**ANN, "url": "https://a.io/"})
            assert (refused.status_code, refused.json()["code"]) == (404, "NO_SUCH_ACCOUNT")


async def test_account_shared_with_tool_is_hidden_from_program(
    here: AskingEnv, shop: Program
) -> None:
    async def look() -> str:
        return (await elicit.oauth(github, scopes=["repo"])).label

    block = here.begin(look)
    await (await here.guest()).connect((await block.link()).url)
    await block
    assert await listed(shop) == []
    assert (
        await shop.at(f"accounts/{(await the_account(here)).id}", params=ANN)
    ).status_code == 404


async def test_program_loses_account_when_user_stops_sharing(
    here: AskingEnv, teller: Program
) -> None:
    id = await teller.connected(here)
    found = await the_account(here)
    await here.service.kinds.accounts.connections.unshare(found.owner, id, found.tools[0])
    assert await listed(teller) == []
    assert (await teller.at(f"accounts/{id}/token", params=ANN)).status_code == 404


async def test_token_is_returned_to_key_with_tokens_scope(
    here: AskingEnv, shop: Program, teller: Program
) -> None:
    id = await shop.connected(here)
    refused = await shop.at(f"accounts/{id}/token", params=ANN)
    assert (refused.status_code, "tokens" in refused.json()["detail"]) == (403, True)
    answer = (await teller.at(f"accounts/{id}/token", params=ANN)).json()
    assert answer["access_token"] == (await the_account(here)).access_token
    assert answer["api_hosts"] == [answer["api"].removesuffix("/github/api")]
    assert "refresh_token" not in answer


async def test_expired_token_is_refreshed_before_api_returns_token(
    here: AskingEnv, teller: Program
) -> None:
    id = await teller.connected(here)
    before = (await the_account(here)).access_token
    here.clock.tick(hours=2)
    answer = (await teller.at(f"accounts/{id}/token", params=ANN)).json()
    assert before != answer["access_token"] == (await the_account(here)).access_token


async def test_lapsed_account_returns_409_and_asks_program_to_connect_again(
    here: AskingEnv, teller: Program
) -> None:
    id = await teller.connected(here)
    await here.service.elicitations.write(lapse(await the_account(here), now=here.clock()))
    assert [one["status"] for one in await listed(teller)] == ["lapsed"]
    for verb in ("token", "proxy"):
        response = await teller.at(f"accounts/{id}/{verb}", params={**ANN, "url": "https://a.io/"})
        assert (response.status_code, response.json()["code"]) == (409, "ACCOUNT_LAPSED")
        assert "kind oauth" in response.json()["detail"]


async def test_disconnected_account_is_revoked_and_no_longer_found(
    here: AskingEnv, teller: Program
) -> None:
    id = await teller.connected(here)
    gone = await teller.at(f"accounts/{id}", method="DELETE", params=ANN)
    assert (gone.status_code, gone.json()["ended"], gone.json()["revoked"]) == (200, True, True)
    assert await listed(teller) == []
    for method, verb in (("DELETE", ""), ("GET", "/token"), ("POST", "/proxy")):
        params = {**ANN, "url": "https://a.io/"}
        response = await teller.at(f"accounts/{id}{verb}", method=method, params=params)
        assert response.status_code == 404
    assert (await the_account(here)).access_token == ""


async def test_audit_names_key_which_disconnected_account() -> None:
    async with living(asking_env(policies=AUDITED)) as here, program_at(here) as shop:
        (key,) = await here.service.identity.api_keys.all()
        id = await shop.connected(here)
        await shop.at(f"accounts/{id}", method="DELETE", params=ANN)
        entries = await audit_entries_of(here.service, owner_of_user(here.service, "ann"))
        ends = [one.by for one in entries if one.what == "disconnected"]
        assert ends == [f"key {tail_of(key)}"]


async def test_deleting_account_used_by_other_program_does_not_revoke_account(
    here: AskingEnv, shop: Program
) -> None:
    id = await shop.connected(here)
    async with program_at(here, program="other") as other:
        asked = await other.asked(ACCOUNT)
        await (await here.guest()).allow(asked["url"])
        assert len(await listed(other)) == 1
        gone = await other.at(f"accounts/{id}", method="DELETE", params=ANN)
        assert gone.json() == {"ended": False, "revoked": None, "manage": None}
        assert await listed(other) == []
    assert [one["id"] for one in await listed(shop)] == [id]


async def test_key_for_single_user_needs_no_user_and_cannot_reach_others(
    here: AskingEnv, shop: Program
) -> None:
    ann, bob = await shop.connected(here), await shop.connected(here, user="bob")
    assert (await shop.at("accounts")).status_code == 400
    async with program_at(here, owners=("ann",)) as anns:
        assert [one["id"] for one in (await anns.at("accounts")).json()["accounts"]] == [ann]
        assert (await anns.at(f"accounts/{ann}")).status_code == 200
        assert (await anns.at(f"accounts/{bob}")).status_code == 404
        assert (await anns.at(f"accounts/{bob}", params={"user": "bob"})).status_code == 403


def refusing(here: AskingEnv, reply: httpx.Response, *, times: int = 9) -> None:
    """Refuse the next requests to the token endpoint with this reply."""
    again = Response(
        reply.content, status_code=reply.status_code, headers=dict(reply.headers.items())
    )
    here.gate.answers.extend([again] * times)


@pytest.mark.parametrize("verb", ["token", "proxy"])
@pytest.mark.parametrize("vendor", ["Atlassian", "HubSpot", "Zoho", "a plain 401"])
async def test_refused_refresh_returns_account_lapsed_until_reconnected(
    here: AskingEnv, teller: Program, vendor: str, verb: str
) -> None:
    # finding: XO1
    id = await teller.connected(here)
    here.clock.tick(hours=9)
    refusing(here, ENDED[vendor])
    before = here.gate.exchanges
    for _ in range(5):
        response = await teller.at(f"accounts/{id}/{verb}", params={**ANN, "url": "https://a.io/"})
        assert (response.status_code, response.json()["code"]) == (409, "ACCOUNT_LAPSED")
    assert here.gate.exchanges == before + 1
    assert [one["status"] for one in await listed(teller)] == ["lapsed"]
    here.gate.answers.clear()
    assert await teller.connected(here) == id


@pytest.mark.parametrize("verb", ["token", "proxy"])
async def test_refused_client_error_says_operator_has_to_act(
    here: AskingEnv, teller: Program, verb: str
) -> None:
    # finding: XO1
    id = await teller.connected(here)
    here.clock.tick(hours=9)
    refusing(here, OPERATORS["a wrong secret"])
    for _ in range(5):
        response = await teller.at(f"accounts/{id}/{verb}", params={**ANN, "url": "https://a.io/"})
        assert (response.status_code, response.json()["code"]) == (502, "ELICITATION_FAILED")
        assert "operator" in response.json()["detail"]
    assert [one["status"] for one in await listed(teller)] == ["connected"]
    refused = await teller.ask(ACCOUNT, user="bob")
    assert (refused.status_code, "operator" in refused.json()["detail"]) == (502, True)


async def test_error_id_of_problem_is_in_log(
    here: AskingEnv, shop: Program, caplog: pytest.LogCaptureFixture
) -> None:
    # finding: XV4
    asked = await shop.asked(ACCOUNT)
    await here.service.elicitations.store.aclose()
    response = await shop.call("GET", f"/{asked['id']}")
    problem = response.json()
    assert (response.status_code, problem["code"]) == (503, "STORE_UNAVAILABLE")
    shown = [getattr(record, "error_id", None) for record in caplog.records]
    assert problem["error_id"] in shown
