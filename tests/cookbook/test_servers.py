"""The example servers, in each cell, tested with the public test kit."""

import json

import pytest

from tests.cookbook.servers import CELLS, EXAMPLES, PLAYS, cells_in_turn
from tests.cookbook.table import measured, rows
from tests.support.samples import PAGES

LINES_AT_MOST = 90


@pytest.mark.parametrize("name", PLAYS)
def test_example_is_short_and_on_the_page(name):
    link = f"\n[{name}.py](../../examples/{name}.py)\n"  # the site shows the file there
    assert link in PAGES["docs/how-to/cookbook.md"]
    assert len((EXAMPLES / f"{name}.py").read_text("utf-8").splitlines()) < LINES_AT_MOST


@pytest.mark.parametrize("name", PLAYS)
async def test_usual_path_runs_as_often_as_the_page_says_and_repeats_nothing(name, pytestconfig):
    # finding: XA9
    cells = CELLS if pytestconfig.getoption("--whole") else cells_in_turn(name)
    watched, replayed = [await measured(name, replay=is_on, cells=cells) for is_on in (False, True)]
    for cell, call in (*watched.items(), *replayed.items()):
        assert call.repeated == (), (cell, str(call))
    assert all(call.starts > 1 for call in replayed.values())
    written = PAGES["docs/how-to/cookbook.md"]
    assert rows(name, watched, replayed) in written, (
        "the table is out of date: run python -m tests.cookbook"
    )


async def test_pull_requests_are_listed_and_account_is_asked_for_once(serve, vendors):
    async with serve("pull_requests") as (person, _):
        person.connects()
        result = await person.call("list_pull_requests", repository="octocat/gate")
        assert result.structured["result"] == ["#7 Fix the gate", "#8 Add a lock"]
        person.connects()  # allows the second tool to use the account
        person.accepts()
        await person.call("merge_pull_request", repository="octocat/gate", number=8)
        assert person.asked[-1].arguments["commit"] == "c0ffee8"
        assert vendors.pulls == {7: "Fix the gate"}


async def test_declined_merge_changes_nothing(serve, vendors):
    async with serve("pull_requests") as (person, _):
        person.connects()
        person.declines()
        result = await person.call("merge_pull_request", repository="octocat/gate", number=7)
        assert result.text == "Nothing was merged."
        assert 7 in vendors.pulls


async def test_denied_account_ends_the_call(serve):
    async with serve("pull_requests") as (person, _):
        person.denies()
        result = await person.call("list_pull_requests", repository="octocat/gate")
        assert result.code == "ELICITATION_DENIED"


async def test_report_is_made_once_if_the_call_is_repeated(serve):
    async with serve("paid_report") as (person, example):
        person.pays()
        first = await person.call("buy_report", city="Vienna")
        again = await person.call("buy_report", city="Vienna")  # the first result was lost
        assert first.text in again.text
        assert example.made == ["Vienna"]
        assert [paid.status for paid in await person.payments()] == ["spent"]


async def test_report_that_cannot_be_made_is_refunded(serve):
    async with serve("paid_report") as (person, _):
        person.pays()
        result = await person.call("buy_report", city="Atlantis")
        assert result.text.startswith("There is no data about Atlantis. The refund of 9.00 EUR is ")
        assert [paid.status for paid in await person.payments()] == ["refunded"]


async def test_declined_payment_makes_no_report(serve):
    async with serve("paid_report") as (person, example):
        person.declines()
        assert (await person.call("buy_report", city="Graz")).code == "ELICITATION_DECLINED"
        assert example.made == []


@pytest.mark.parametrize("refused", ["google", "pipedrive"])
async def test_contacts_stay_if_one_account_is_refused(serve, vendors, refused):
    async with serve("crm") as (person, _):
        if refused == "google":
            person.denies()
            person.types_key("pd-1")
        else:
            person.connects()
            person.declines()
        result = await person.call("move_contacts")
        assert result.text.startswith("Nothing was moved. ")
        assert not result.is_error
        assert (len(vendors.people), vendors.persons) == (2, [])


async def test_failed_delete_ends_the_move_and_leaves_that_contact(serve, vendors):
    vendors.broken = "DELETE https://people.googleapis.com/v1/people/2:deleteContact"
    async with serve("crm") as (person, _):
        person.connects()
        person.types_key("pd-1")
        person.accepts()
        assert (await person.call("move_contacts")).is_error
        assert vendors.people == {"people/2": "Ben"}


async def test_seat_is_released_if_the_person_never_pays(serve):
    # finding: XA1
    async with serve("booking") as (person, example):
        person.never_comes()
        await person.call("book_seat", seat=14)
        await person.let_pass(minutes=20)
        assert 14 in (await person.call("list_free_seats")).structured["result"]
        assert example.held == {}
        assert [ending.how for ending in person.endings] == ["expired"]


async def test_seat_is_released_if_the_person_declines(serve):
    # finding: XA1
    async with serve("booking") as (person, example):
        person.declines()
        assert (await person.call("book_seat", seat=14)).code == "ELICITATION_DECLINED"
        assert (example.held, example.sold) == ({}, set())


async def test_held_and_sold_seats_are_refused(serve):
    async with serve("booking") as (person, example):
        example.held[3] = "another call"
        assert "Somebody else" in (await person.call("book_seat", seat=3)).text
        assert example.held == {3: "another call"}
        example.sold.add(4)
        assert "not for sale" in (await person.call("book_seat", seat=4)).text


async def test_declined_invoice_is_left_out(serve):
    async with serve("batch") as (person, example):
        person.declines()
        for _ in range(19):
            person.accepts()
        assert (await person.call("pay_invoices")).text == "19 of 20 invoices are paid."
        assert "R-1" not in example.transfers.values()


async def test_batch_that_stopped_halfway_is_resumed(serve, request):
    # finding: XA9
    async with serve("batch") as (person, example):
        for _ in range(7):
            person.accepts()
        if "nothing" in request.node.name:
            person.leaves_open()
            await person.call("pay_invoices")
            await person.restarts()
        else:
            person.dismisses() if "url" in request.node.name else person.never_comes()
            await person.call("pay_invoices")
        assert len(example.transfers) == 7
        for _ in range(13):
            person.accepts()
        assert (await person.call("pay_invoices")).text == "20 of 20 invoices are paid."
        assert sorted(example.transfers.values()) == sorted(example.INVOICES)


async def test_forged_report_completes_nothing(serve):
    async with serve("kyc") as (person, example):

        async def report(asked):
            body = json.dumps({"case": asked.elicitation_id, "status": "verified"}).encode()
            forged = {**example.signed(body), "verifo-signature": "00" * 32}
            reply = await person.posts("/verifo", content=body, headers=forged)
            assert reply.status_code == 401
            refused = body.replace(b"verified", b"rejected")
            await person.posts("/verifo", content=refused, headers=example.signed(refused))

        person.continues(report)
        result = await person.call("open_depot")
        assert "no depot was opened" in result.text
        assert example.depots == []
