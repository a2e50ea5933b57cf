"""The webhook log, as the operator's program reads it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.api_program import Program, program_at
from tests.support.asking_env import AskingEnv
from webapp.identity.api_keys import KeyScope
from webapp.records.values import StoredWebhook


@pytest.fixture
async def desk(here: AskingEnv) -> AsyncIterator[Program]:
    async with program_at(here, program="desk", scope=KeyScope.OPERATE) as program:
        yield program


async def listed(desk: Program, **query: Any) -> list[dict[str, Any]]:
    answer = await desk.at("webhooks", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["webhooks"]
    return found


async def stored_webhooks(here: AskingEnv) -> dict[str, StoredWebhook]:
    return {hook.id: hook for hook in await here.service.webhooks.log.webhooks()}


async def test_webhook_is_listed_without_body_and_read_with_body(
    here: AskingEnv, shop: Program, desk: Program
) -> None:
    asked = await shop.paid(here)
    answer = {one["id"]: one for one in await listed(desk)}
    there = await stored_webhooks(here)
    assert answer.keys() == there.keys()
    (paid,) = [one for one in answer.values() if one["question_id"] == asked["id"]]
    assert (paid["provider"], paid["status"], paid["body"]) == ("stripe", "applied", None)
    read = (await desk.at(f"webhooks/{paid['id']}")).json()
    assert read == {**paid, "body": there[paid["id"]].body}
    assert asked["id"] in read["body"]


async def test_webhook_log_is_filtered_by_provider_and_status_and_paged(
    here: AskingEnv, shop: Program, desk: Program
) -> None:
    for user in ("ann", "bob", "eve"):
        await shop.paid(here, user=user)
    ids = set(await stored_webhooks(here))
    assert {one["id"] for one in await listed(desk, provider="stripe")} == ids
    assert await listed(desk, provider="paypal") == []
    assert await listed(desk, status="refused") == []
    seen, about = list[str](), {"limit": "1"}
    for _ in ids:
        page = (await desk.at("webhooks", params=about)).json()
        seen += [one["id"] for one in page["webhooks"]]
        about["after"] = page["after"]
    assert sorted(seen) == sorted(ids)


async def test_replayed_webhook_does_not_pay_twice(
    here: AskingEnv, shop: Program, desk: Program
) -> None:
    asked = await shop.paid(here)
    before = await shop.read(asked["id"])
    for one in await listed(desk):
        again = await desk.at(f"webhooks/{one['id']}/replay", method="POST")
        assert (again.status_code, again.json()["status"]) == (200, one["status"])
        assert again.json()["replayed_at"] is not None
    assert await shop.read(asked["id"]) == before
    assert len((await shop.at("payments", params={"user": "ann"})).json()["payments"]) == 1


async def test_webhook_log_needs_operator_key_and_operator_key_cannot_ask(
    here: AskingEnv, shop: Program, desk: Program
) -> None:
    await shop.paid(here)
    (one, *_) = await listed(desk)
    for method, path in (
        ("GET", "webhooks"),
        ("GET", f"webhooks/{one['id']}"),
        ("POST", f"webhooks/{one['id']}/replay"),
    ):
        assert (await shop.at(path, method=method)).status_code == 403
    for path in ("questions", "accounts", "payments"):
        assert (await desk.at(path, params={"user": "ann"})).status_code == 403
    assert (await stored_webhooks(here))[one["id"]].replayed_at is None


@pytest.mark.parametrize("id", ["~", "~nothing", "nothing", "A" * 44])
async def test_unknown_webhook_id_returns_404(desk: Program, id: str) -> None:
    for method, verb in (("GET", ""), ("POST", "/replay")):
        refused = await desk.at(f"webhooks/{id}{verb}", method=method)
        assert (refused.status_code, refused.json()["code"]) == (404, "NO_SUCH_WEBHOOK")
