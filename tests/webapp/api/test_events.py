"""Outgoing events over the API: listed in pages and sent again, with an operator's key."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.api_program import Program, program_at
from tests.support.asking_env import AskingEnv, asking_env
from tests.support.event_env import CRM, DESK
from tests.support.living import living
from tests.support.service_env import asked
from webapp.events.service import EventsOut
from webapp.identity.api_keys import KeyScope

PATH = "/api/events"


@pytest.fixture
async def here() -> AsyncIterator[AskingEnv]:
    async with living(asking_env()) as here:
        service = here.service
        EventsOut(service.elicitations, outbound=service.outbound, addresses=[CRM, DESK])
        for number in range(3):
            await asked(service, join=str(number))
        yield here


@pytest.fixture
async def desk(here: AskingEnv) -> AsyncIterator[Program]:
    async with program_at(here, program="desk", scope=KeyScope.OPERATE) as desk:
        yield desk


async def test_operator_lists_events_page_by_page_and_replays_event(
    here: AskingEnv, desk: Program
) -> None:
    found, behind = list[dict[str, Any]](), dict[str, str]()
    while True:
        answer = await desk.client.get(PATH, params={"limit": 2, "address": "crm", **behind})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["events"]
        if page["after"] is None:
            break
        behind = {"after": page["after"]}
    assert [each["type"] for each in found] == ["question.asked"] * 3
    first = found[0]
    assert (first["address"], first["status"], first["tries"]) == ("crm", "waiting", 0)
    answer = await desk.client.post(f"{PATH}/{first['id']}/replay")
    assert answer.status_code == 202
    assert answer.json()["id"] == first["id"]
    sent = await desk.client.get(PATH, params={"status": "sent"})
    assert sent.json() == {"events": [], "after": None}


async def test_unknown_event_returns_404_and_invalid_query_returns_400(desk: Program) -> None:
    for id in ("evt_", "evt_" + "a" * 36, "evt_" + "a" * 35 + "é", "x" * 2000):
        answer = await desk.client.post(f"{PATH}/{id}/replay")
        assert (answer.status_code, answer.json()["code"]) == (404, "NO_SUCH_EVENT")
    wrong = ({"limit": 0}, {"limit": 101}, {"status": "lost"}, {"address": "A"}, {"after": "a b"})
    for query in wrong:
        answer = await desk.client.get(PATH, params=query)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_INPUT")


async def test_operator_key_reads_events_and_cannot_ask_questions(
    here: AskingEnv, desk: Program
) -> None:
    for scope, owners in ((KeyScope.ASK, ()), (KeyScope.APPROVE, ("ann",))):
        async with program_at(here, scope=scope, owners=owners) as program:
            assert (await program.client.get(PATH)).status_code == 403
            assert (await program.client.post(f"{PATH}/evt_1/replay")).status_code == 403
    assert (await desk.ask({"kind": "confirm", "message": "Yes?"})).status_code == 403
    assert (await desk.call("GET", params={"user": "ann"})).status_code == 403
