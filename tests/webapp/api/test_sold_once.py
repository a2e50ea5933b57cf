"""Permanent purchases that a program or a block sells: sold once to each user."""

import pytest

from flows import elicit
from flows.payments.money import Money
from tests.support.api_program import PAYMENT, Program
from tests.support.asking_env import AskingEnv
from webapp.sweeper import fall_due

FOR_GOOD = {**PAYMENT, "once": True}
PRICE = Money("9.00", "EUR")


async def test_two_requests_for_permanent_purchase_share_question(
    here: AskingEnv, shop: Program
) -> None:
    # finding: XM1
    first = (await shop.ask(FOR_GOOD, name="one")).json()
    second = (await shop.ask(FOR_GOOD, name="two")).json()
    assert first["id"] == second["id"]
    await (await here.guest("ann")).pay(first["url"])
    answer = await shop.read(first["id"], wait=50)
    assert (answer["status"], answer["payment"]["amount"]) == ("accepted", 900)
    assert (await shop.post(first["id"], "taken")).status_code == 200
    for name in ("one", "two", "three"):
        again = (await shop.ask(FOR_GOOD, name=name)).json()
        assert (again["status"], again["payment"]["id"]) == ("accepted", answer["payment"]["id"])


async def test_two_runs_with_permanent_purchase_share_question(
    here: AskingEnv, shop: Program
) -> None:
    # finding: XM1
    asked = [(await shop.ask({**FOR_GOOD, "run": run})).json() for run in ("monday", "tuesday")]
    assert asked[0]["id"] == asked[1]["id"]
    await (await here.guest("ann")).pay(asked[0]["url"])
    for run in ("monday", "tuesday"):
        answer = (await shop.ask({**FOR_GOOD, "run": run})).json()
        assert answer["status"] == "accepted"
        ended = await shop.at(
            "runs/end",
            method="POST",
            json={"user": "ann", "run": run, "questions": [asked[0]["id"]]},
        )
        assert ended.status_code == 200
    (row,) = (await shop.at("payments", params={"user": "ann"})).json()["payments"]
    assert row["status"] == "spent"


async def test_two_blocks_with_permanent_purchase_share_question(here: AskingEnv) -> None:
    # finding: XM1
    async def buy() -> str:
        return (await elicit.payment(PRICE, "Membership", once=True)).id

    first, second = here.begin(buy, key="monday"), here.begin(buy, key="tuesday")
    links = [(await block.link()).url for block in (first, second)]
    await (await here.guest("ann")).pay(links[1])
    assert await first == await second


async def test_permanent_purchase_is_separate_for_each_person(
    here: AskingEnv, shop: Program
) -> None:
    asked = [(await shop.ask(FOR_GOOD, user=user)).json() for user in ("ann", "bob")]
    assert asked[0]["id"] != asked[1]["id"]


@pytest.mark.parametrize("is_for_good", [False, True])
@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("first", [0, 1])
async def test_second_payment_for_same_request_is_refunded_immediately(
    here: AskingEnv, shop: Program, first: int, *, is_for_good: bool, is_taken: bool
) -> None:
    # finding: XM1, XM5
    body, ledger = (FOR_GOOD if is_for_good else PAYMENT), here.service.kinds.payments.ledger
    pages, asked = [], []
    for _ in range(2):  # the question is cancelled while its checkout is open, and asked again
        answer = (await shop.ask(body, name="one")).json()
        guest = await here.guest("ann")
        pages.append((guest, await guest.at_checkout(answer["url"])))
        asked.append(answer["id"])
        if len(asked) == 1:
            assert (await shop.post(answer["id"], "cancel")).status_code == 200
    assert asked[0] != asked[1]
    for guest, page in (pages[first], pages[1 - first]):
        await guest.press_there(page, "card")
        if is_taken and len(await ledger.all()) == 1:
            assert (await shop.post(asked[first], "taken")).status_code == 200
    for _ in range(3):
        here.clock.tick(seconds=31)
        await fall_due(here.service)
    rows = await ledger.all()
    found = {(row.status, row.refunded) for row in rows}
    assert found == {("spent" if is_taken else "open", 0), ("refunded", 900)}
    (surplus,) = [row for row in rows if row.refunded]
    assert (surplus.elicitation_id == asked[1 - first], surplus.reason) == (True, "paid twice")
    if is_for_good or not is_taken:
        again = (await shop.ask(body, name="one")).json()
        assert (again["status"], again["payment"]["id"]) == ("accepted", surplus.surplus_to)
