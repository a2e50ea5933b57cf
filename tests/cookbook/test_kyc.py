"""The identity check by a vendor, in each cell, tested with the public test kit."""

import json
import time
from functools import partial

from tests.cookbook.servers import report


async def test_rejected_person_gets_no_depot(serve):
    async with serve("kyc") as (person, example):
        person.continues(partial(report, person, example, status="rejected"))
        assert "could not verify" in (await person.call("open_depot")).text
        assert example.depots == []


async def test_forged_stale_and_broken_reports_are_refused_and_duplicate_changes_nothing(serve):
    answers = list[tuple[int, str]]()
    async with serve("kyc") as (person, example):

        async def vendor(asked) -> None:
            body = json.dumps({"case": asked.elicitation_id, "status": "verified"}).encode()
            other = json.dumps({"case": asked.elicitation_id, "status": "rejected"}).encode()
            stranger = json.dumps({"case": "case-of-nobody", "status": "verified"}).encode()
            now = int(time.time())
            for content, headers in (
                (body, {}),
                (body, example.signed(other)),
                (body, example.signed(body) | {"verifo-time": str(now - 1)}),
                (body, example.signed(body) | {"verifo-time": "\u0661"}),
                (body, example.signed(body) | {"verifo-signature": "\u00e9"}),
                (body, example.signed(body, at=now - 301)),
                (body, example.signed(body, at=now + 900)),
                (b"{}", example.signed(b"{}")),
                (stranger, example.signed(stranger)),
                (body, example.signed(body)),
                (body, example.signed(body)),
                (other, example.signed(other)),
            ):
                encoded = {name: value.encode() for name, value in headers.items()}
                reply = await person.posts("/verifo", content=content, headers=encoded)
                answers.append((reply.status_code, reply.text))

        person.continues(vendor)
        assert (await person.call("open_depot")).text == "The depot is open."
        assert [status for status, _ in answers] == [401] * 7 + [400] + [200] * 4
        assert [text for _, text in answers[-4:]] == [
            *("unknown", "accepted", "already_settled", "already_settled"),
        ]
        assert len(example.depots) == 1


async def test_report_that_arrives_after_a_restart_counts(serve):
    async with serve("kyc") as (person, example):
        person.leaves_open()
        await person.call("open_depot")
        await person.restarts()
        reply = await report(person, example, person.asked[0])
        assert reply.text == "accepted"
        assert (await person.call("open_depot")).text == "The depot is open."
        assert len(example.depots) == 1
        assert len(person.asked) == 1


async def test_person_who_never_comes_back_has_no_depot(serve):
    async with serve("kyc") as (person, example):
        person.never_comes()
        await person.call("open_depot")
        await person.let_pass(hours=2)
        assert example.depots == []


async def test_two_people_have_cases_of_their_own(serve):
    async with serve("kyc") as (person, example):
        ann = await person.another("ann")
        ann.continues(partial(report, ann, example))
        person.continues(partial(report, person, example, status="rejected"))
        assert (await ann.call("open_depot")).text == "The depot is open."
        assert "could not verify" in (await person.call("open_depot")).text
        assert example.depots == [ann.asked[0].elicitation_id]
