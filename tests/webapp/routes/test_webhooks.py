"""The webhook route: unverified requests are refused, and requests answered with 2xx are stored."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.webhooks.signatures import BODY_BYTES_AT_MOST
from tests.support.mcp_server import cut, eventually
from tests.support.payment_events import COMPLETED, EXPIRED, sent_event
from tests.support.shop_env import FrailStore, Shop, buying, open_shop
from tests.support.webhooks import a_session, paid, signed

MEGABYTE = 1024 * 1024
PROBLEM = "application/problem+json"


def malformed(good: str) -> list[str]:
    """Return malformed variants of the valid signature header `good`."""
    time, _, mac = good.partition(",v1=")
    return [
        "",
        "t=,v1=",
        good.replace("t=", "t=-"),
        f"t=99999999999999999999,v1={mac}",
        f"t=1e9,v1={mac}",
        f"t=\u0661\u0662,v1={mac}".encode().decode("latin-1"),
        f"v1={mac}",
        time,
        f"{time},{time},v1={mac}",
        f"{time},v0={mac}",
        good.upper(),
        f"{time},v1={mac[:-1]}",
        f"{time},v1={mac}\xff",
        f"{time}," + ",".join([f"v1={mac}"] * 17),
        f"{time},v1={'0' * 5000}",
        "\x00",
    ]


async def test_payment_webhook_is_answered_with_200_and_settles_question(shop: Shop) -> None:
    async with buying(shop) as buy:
        answer = await shop.send(await paid(shop, buy))
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
        assert answer.headers["content-type"] == "application/json"
        assert await buy.result() == "paid 9.00 EUR"


async def test_missing_wrong_old_future_or_repeated_signature_is_refused(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        body = await paid(shop, buy)
        good = signed(shop, body)
        for headers in (
            [],
            signed(shop, body, secret="whsec_of_somebody_else"),
            signed(shop, body + b" "),
            signed(shop, body, seconds=301),
            signed(shop, body, days=3),
            signed(shop, body, seconds=-301),
            signed(shop, body, days=-365),
            good * 2,
            [("x-stripe-signature", good[0][1])],
        ):
            answer = await shop.deliver(body, headers)
            assert (answer.status_code, answer.headers["content-type"]) == (400, PROBLEM)
            assert answer.json()["code"] == "WEBHOOK_UNVERIFIED"
            assert answer.json()["detail"] == "The server could not verify this webhook."
        assert (await shop.statuses(), await shop.ledger()) == (["opened"], [])
        assert await shop.webhooks() == []
        assert (await shop.deliver(body, good)).status_code == 200
        assert await buy.result() == "paid 9.00 EUR"


async def test_signature_is_valid_for_five_minutes(shop: Shop) -> None:
    async with buying(shop) as buy:
        body = await paid(shop, buy)
        assert (await shop.deliver(body, signed(shop, body, seconds=300))).status_code == 200


async def test_malformed_signature_is_refused_without_server_error(shop: Shop) -> None:
    async with buying(shop) as buy:
        body = await paid(shop, buy)
        for header in malformed(signed(shop, body)[0][1]):
            headers = [(b"stripe-signature", header.encode("latin-1"))]
            answer = await shop.deliver(body, headers)
            assert (answer.status_code, answer.headers["content-type"]) == (400, PROBLEM), header
        assert (await shop.statuses(), await shop.ledger()) == (["opened"], [])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe\x00",
        b"\xef\xbb\xbf{}",
        b"null",
        b"[]",
        b"{}",
        b'{"id":"evt_1"}',
        b"[" * 100_000,
        b'{"id":"evt_1","type":"checkout.session.completed"}',
        b'{"id":"evt_1","type":"checkout.session.completed","data":{"object":"\xff"}}',
        json.dumps(sent_event(COMPLETED, {"id": "cs_1"})).encode(),
        json.dumps(sent_event(COMPLETED, {}, created=-1)).encode(),
        json.dumps({**sent_event(EXPIRED, {}), "id": "../../e"}).encode(),
        b'{"id":"evt_1","type":"checkout.session.completed","created":' + b"9" * 5000 + b"}",
    ],
)
async def test_signed_body_which_is_no_event_is_refused(shop: Shop, body: bytes) -> None:
    answer = await shop.send(body)
    assert (answer.status_code, answer.headers["content-type"]) == (400, PROBLEM)
    assert await shop.webhooks() == []


async def test_unrelated_event_is_acknowledged(shop: Shop) -> None:
    for number, (body, became) in enumerate(
        (
            (sent_event("charge.refunded", {"id": "ch_1", "object": "charge"}), "ignored"),
            (
                sent_event(
                    "some.future.event", {"x": "\ud800".encode("utf-8", "replace").decode()}
                ),
                "ignored",
            ),
            (
                sent_event(
                    COMPLETED, await a_session(shop, client_reference_id="user-17", metadata={})
                ),
                "unknown",
            ),
            (
                sent_event(COMPLETED, await a_session(shop, client_reference_id=None, metadata={})),
                "ignored",
            ),
        )
    ):
        answer = await shop.send({**body, "id": f"evt_{number}"})
        assert (answer.status_code, answer.json()) == (200, {"received": became})
    assert sorted(hook.status for hook in await shop.webhooks()) == [*["ignored"] * 3, "unknown"]
    assert await shop.ledger() == []


async def test_event_with_unknown_id_is_acknowledged_and_changes_nothing(shop: Shop) -> None:
    async with buying(shop) as buy:
        id = shop.env.id_of(buy.link)
        for reference in (id + "_", id[:20], "x" * 200, "-", "service" * 4):
            about = await a_session(shop, client_reference_id=reference)
            assert (await shop.send(sent_event(COMPLETED, about))).status_code == 200
        assert await shop.statuses() == ["pending"]
        assert {hook.status for hook in await shop.webhooks()} == {"unknown"}


@pytest.mark.parametrize("has_length", [True, False])
async def test_ten_megabyte_body_is_refused_without_reading_it_all(
    shop: Shop, has_length: bool
) -> None:
    read = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(160):
            read += 64 * 1024
            yield b" " * (64 * 1024)

    headers = signed(shop, b"")
    length = [("content-length", str(10 * MEGABYTE))] if has_length else []
    answer = await shop.deliver(pieces(), [*headers, *length])
    assert (answer.status_code, answer.headers["content-type"]) == (413, PROBLEM)
    assert read <= (0 if has_length else BODY_BYTES_AT_MOST + 128 * 1024)


async def test_largest_allowed_body_is_read_and_larger_body_is_refused(shop: Shop) -> None:
    for size, status in ((BODY_BYTES_AT_MOST, 400), (BODY_BYTES_AT_MOST + 1, 413)):
        assert (await shop.send(b" " * size)).status_code == status


async def test_large_event_of_own_payment_is_accepted(shop: Shop) -> None:
    async with buying(shop) as buy:
        event = json.loads(await paid(shop, buy))
        event["data"]["object"]["custom_text"] = '"\\' * 50_000
        assert (await shop.send(event)).status_code == 200
        assert await buy.result() == "paid 9.00 EUR"


async def test_unknown_provider_or_provider_without_secret_has_no_endpoint(
    shop: Shop,
) -> None:
    body = json.dumps(sent_event(COMPLETED, await a_session(shop))).encode()
    for path in ("/webhooks/square", "/webhooks/STRIPE", "/webhooks/", "/webhooks/stripe/x"):
        assert (await shop.deliver(body, signed(shop, body), path=path)).status_code == 404
    await shop.restart(sellers={"stripe": replace(shop.seller, webhook_secrets=())})
    assert (await shop.send(body)).status_code == 404
    await shop.restart(sellers={})
    assert (await shop.send(body)).status_code == 404


async def test_each_of_several_secrets_is_accepted_during_rotation(shop: Shop) -> None:
    old = shop.sandbox.webhook_secret
    await shop.restart(
        sellers={"stripe": replace(shop.seller, webhook_secrets=("whsec_the_new_one", old))}
    )
    async with buying(shop) as buy:
        body = await paid(shop, buy)
        for secret in (old, "whsec_the_new_one"):
            answer = await shop.deliver(body, signed(shop, body, secret=secret))
            assert answer.status_code == 200
        await shop.restart(
            sellers={"stripe": replace(shop.seller, webhook_secrets=("whsec_the_new_one",))}
        )
    assert (await shop.deliver(body, signed(shop, body, secret=old))).status_code == 400
    assert len(await shop.payments()) == 1


async def test_repeated_webhook_changes_nothing(shop: Shop) -> None:
    async with buying(shop) as buy:
        body = await paid(shop, buy)
        for _ in range(3):
            assert (await shop.send(body)).status_code == 200
        assert await buy.result() == "paid 9.00 EUR"
        shop.clock.tick(days=2)
        assert (await shop.send(body)).status_code == 200
        assert (len(await shop.payments()), len(await shop.webhooks()), shop.bodies) == (1, 1, 1)


async def test_two_events_about_same_payment_make_single_row(shop: Shop) -> None:
    async with buying(shop) as buy:
        event = json.loads(await paid(shop, buy))
        for id in ("evt_a", "evt_b"):
            assert (await shop.send({**event, "id": id})).status_code == 200
        assert await buy.result() == "paid 9.00 EUR"
        assert (len(await shop.payments()), shop.bodies) == (1, 1)


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_same_webhook_at_two_processes_concurrently_pays_once(
    tmp_path: Path, is_on_disk: bool
) -> None:
    async with open_shop(folder=tmp_path if is_on_disk else None) as shop:
        other = await shop.process()
        async with buying(shop) as buy:
            body = await paid(shop, buy)
            again = json.dumps({**json.loads(body), "id": "evt_again"}).encode()
            answers = await asyncio.gather(
                *(shop.send(one, to=to) for one in (body, again) for to in (None, other) * 3)
            )
            assert {answer.status_code for answer in answers} == {200}
            assert await buy.result() == "paid 9.00 EUR"
            assert (len(await shop.payments()), shop.bodies) == (1, 1)
            assert await shop.statuses() == ["accepted"]
        await other.ended()


async def test_webhook_at_another_process_wakes_waiting_tool(shop: Shop) -> None:
    other = await shop.process()
    async with buying(shop) as buy:
        assert (await shop.send(await paid(shop, buy), to=other)).status_code == 200
        assert await buy.result() == "paid 9.00 EUR"
    await other.ended()


async def test_webhook_which_cannot_be_stored_is_refused_and_accepted_when_resent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FrailStore()
    async with open_shop(store=store) as shop, buying(shop) as buy:
        body = await paid(shop, buy)
        store.troubles.append("the disk is full")
        answer = await shop.send(body)
        assert answer.status_code == 503
        assert "disk" not in answer.text
        foreign = sent_event(COMPLETED, {**json.loads(body)["data"]["object"], "id": "cs_test_9"})
        assert (await shop.send(foreign)).status_code == 503
        store.troubles.clear()
        assert (await shop.ledger(), await shop.webhooks()) == ([], [])
        assert not buy.call.done()
        assert (await shop.send(body)).status_code == 200
        assert await buy.result() == "paid 9.00 EUR"


async def test_provider_disconnecting_before_response_loses_nothing(shop: Shop) -> None:
    async with buying(shop) as buy:
        telling = asyncio.ensure_future(shop.send(await paid(shop, buy)))
        while not await shop.ledger():  # noqa: ASYNC110
            await asyncio.sleep(0)
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        assert await buy.result() == "paid 9.00 EUR"


async def test_payment_reported_without_a_waiting_call_is_used_by_next_call(shop: Shop) -> None:
    async with buying(shop) as buy:
        await cut(buy.call)
        await eventually(lambda: not len(shop.service.elicitations.waiters))
        assert (await shop.send(await paid(shop, buy))).status_code == 200
        assert await buy.again() == "paid 9.00 EUR"


async def test_methods_other_than_post_are_refused(shop: Shop) -> None:
    async with buying(shop) as buy:
        for method in ("GET", "PUT", "DELETE"):
            answer = await buy.person.browser.request(method, f"{shop.url}/webhooks/stripe")
            assert answer.status_code == 405


async def test_logs_and_responses_contain_no_keys_signatures_or_bodies(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    texts: list[str] = []
    macs: list[str] = []
    async with buying(shop) as buy:
        body = await paid(shop, buy)
        event = json.loads(body)
        foreign = sent_event(COMPLETED, {**event["data"]["object"], "id": "cs_test_9"})
        wrong = sent_event(
            COMPLETED, {**event["data"]["object"], "amount_total": 901}, id="evt_wrong"
        )
        for one in (body, json.dumps(foreign).encode(), json.dumps(wrong).encode(), b"{}"):
            for headers in (signed(shop, one), signed(shop, one, days=1), []):
                macs += re.findall(r"v1=(\w+)", str(headers))
                texts.append((await shop.deliver(one, headers)).text)
        shop.line.is_down = True
        await shop.sweep()
        texts.append(await buy.result())
    lines = [f"{r.getMessage()} {r.exc_text} {vars(r)}" for r in caplog.records]
    secrets = [shop.sandbox.stripe_key, shop.sandbox.webhook_secret, *macs]
    for secret in (*secrets, "amount_total", event["data"]["object"]["payment_intent"]):
        assert not any(secret in line for line in (*lines, *texts)), secret
    assert {"webhook.unverified", "payment.mismatch"} <= {r.getMessage() for r in caplog.records}
