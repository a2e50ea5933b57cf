"""A product that a program or a block sells for good is sold once to each user."""

from flows import elicit
from flows.payments.money import Money
from tests.support.api_program import PAYMENT, Program
from tests.support.asking_env import AskingEnv

FOR_GOOD = {**PAYMENT, "once": True}
PRICE = Money("9.00", "EUR")


async def test_two_requests_of_a_program_are_one_question(here: AskingEnv, shop: Program) -> None:
    # finding: XM1
    first = (await shop.ask(FOR_GOOD, name="one")).json()
    second = (await shop.ask(FOR_GOOD, name="two")).json()
    assert first["id"] == second["id"]
    await (await here.guest("ann")).pay(first["url"])
    told = await shop.read(first["id"], wait=50)
    assert (told["status"], told["payment"]["amount"]) == ("accepted", 900)
    assert (await shop.post(first["id"], "taken")).status_code == 200
    for name in ("one", "two", "three"):
        again = (await shop.ask(FOR_GOOD, name=name)).json()
        assert (again["status"], again["payment"]["id"]) == ("accepted", told["payment"]["id"])


async def test_two_runs_of_a_program_share_one_question(here: AskingEnv, shop: Program) -> None:
    # finding: XM1
    asked = [(await shop.ask({**FOR_GOOD, "run": run})).json() for run in ("monday", "tuesday")]
    assert asked[0]["id"] == asked[1]["id"]
    await (await here.guest("ann")).pay(asked[0]["url"])
    for run in ("monday", "tuesday"):
        told = (await shop.ask({**FOR_GOOD, "run": run})).json()
        assert told["status"] == "accepted"
        ended = await shop.at(
            "runs/end",
            method="POST",
            json={"user": "ann", "run": run, "questions": [asked[0]["id"]]},
        )
        assert ended.status_code == 200
    (row,) = (await shop.at("payments", params={"user": "ann"})).json()["payments"]
    assert row["status"] == "spent"


async def test_two_blocks_of_an_application_share_one_question(here: AskingEnv) -> None:
    # finding: XM1
    async def buy() -> str:
        return (await elicit.payment(PRICE, "Membership", once=True)).id

    first, second = here.begin(buy, key="monday"), here.begin(buy, key="tuesday")
    links = [(await block.link()).url for block in (first, second)]
    await (await here.guest("ann")).pay(links[1])
    assert await first == await second


async def test_two_people_buy_each_for_themselves(here: AskingEnv, shop: Program) -> None:
    asked = [(await shop.ask(FOR_GOOD, user=user)).json() for user in ("ann", "bob")]
    assert asked[0]["id"] != asked[1]["id"]
