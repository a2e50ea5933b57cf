"""`elicit events`: events are listed, sent again and tested. The doctor checks each address."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest

from flows.elicitation.states import Elicitation
from tests.support.clock import Clock
from tests.support.event_env import (
    CRM,
    SECRET,
    Receiver,
    events_of,
    pass_time,
    round_of,
    send_one,
    serving_events,
)
from tests.support.service_env import asked
from webapp.cli.doctor import examine_events
from webapp.cli.events import list_events, replay_events, resume_address, try_address
from webapp.cli.main import main
from webapp.cli.table import lines_of
from webapp.command import CommandRefused
from webapp.events.addresses import is_secret
from webapp.events.sender import SCHEDULE
from webapp.operations.history import show
from webapp.records.ids import tail_of
from webapp.service import Service
from webapp.settings.quotas import PolicySettings
from webapp.stores.sqlite import MemoryStore

WEEK = timedelta(days=7)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
async def here(clock: Clock, receiver: Receiver) -> AsyncIterator[Service]:
    policies = PolicySettings(events_waiting=3)
    async with serving_events(MemoryStore(), clock, receiver, policies=policies) as service:
        yield service


async def lost(service: Service, receiver: Receiver, clock: Clock) -> None:
    """Create an event whose delivery was given up."""
    receiver.is_down = True
    await send_one(service, timeout=WEEK)
    for pause in SCHEDULE:
        await pass_time(service, clock, seconds=pause.total_seconds() * 1.2 + 1)
    receiver.is_down = False


def test_events_secret_prints_a_valid_secret(capsys: pytest.CaptureFixture[str]) -> None:
    made = set[str]()
    for _ in range(2):
        assert main(["events", "secret"]) == 0
        made.add(capsys.readouterr().out.strip())
    assert len(made) == 2
    assert all(map(is_secret, made))


@pytest.mark.usefixtures("home")
def test_events_list_without_events_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.usefixtures("home")
def test_events_test_of_unknown_address_names_setting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["events", "test", "crm"]) == 2
    assert "ELICIT_EVENTS_{NAME}_URL" in capsys.readouterr().err


@pytest.mark.usefixtures("home")
def test_settings_list_shows_variable_of_event_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ELICIT_EVENTS_CRM_URL", CRM.url)
    monkeypatch.setenv("ELICIT_EVENTS_CRM_SECRET", SECRET)
    assert main(["settings", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["ELICIT_EVENTS_{NAME}_URL"]["set_by"] == ["ELICIT_EVENTS_CRM_URL"]


@pytest.mark.usefixtures("home")
def test_settings_explains_a_named_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "ELICIT_STORE"]) == 0
    output = capsys.readouterr().out
    assert "sqlite" in output, output


@pytest.mark.usefixtures("home")
def test_settings_name_pages_of_docs_by_their_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "--json"]) == 0
    says = {row["name"]: row["says"] for row in json.loads(capsys.readouterr().out)}
    assert "stores (docs/how-to/stores.md)" in says["ELICIT_STORE"]
    assert [name for name, text in says.items() if "](" in text] == []


@pytest.mark.usefixtures("home")
def test_settings_list_names_unknown_variable_with_suggestion(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ELICIT_STROE", "memory:")
    assert main(["settings"]) == 1
    errors = capsys.readouterr().err
    assert "ELICIT_STROE" in errors
    assert "ELICIT_STORE" in errors


async def test_sent_event_is_listed_and_replayed_by_id_prefix(
    here: Service, receiver: Receiver, clock: Clock
) -> None:
    await send_one(here, timeout=WEEK)
    table = await list_events(here)
    (row,) = table.rows
    assert (row.id, row.address, row.status, row.tries) == (receiver.ids[0], "crm", "sent", 1)
    head, line = lines_of(table, width=200, now=clock())
    assert head.split()[:3] == ["ID", "ADDRESS", "TYPE"]
    assert line.startswith(row.id[:8])
    assert "Ghent" not in line
    (report,) = await replay_events(here, id=row.id[:10])
    assert "question.asked for crm" in report
    await round_of(here)
    assert receiver.ids == [row.id, row.id]


async def test_id_of_an_event_leads_to_its_question(here: Service, receiver: Receiver) -> None:
    await send_one(here, timeout=WEEK)
    (question,) = await here.elicitations.all(Elicitation)
    shown = await show(here, receiver.ids[0])
    assert (shown.kind, shown.question) == ("event", tail_of(question))


async def test_all_undelivered_events_of_address_are_replayed_together(
    here: Service, receiver: Receiver, clock: Clock
) -> None:
    await lost(here, receiver, clock)
    assert [event.status for event in await events_of(here)] == ["given up"]
    assert "1 event for crm" in (await replay_events(here, given_up="crm"))[0]
    await round_of(here)
    assert receiver.types == ["question.asked"]


async def test_replay_of_unknown_event_is_refused(here: Service) -> None:
    with pytest.raises(CommandRefused, match="events list"):
        await replay_events(here, id="evt_nothing")


async def test_test_event_is_sent_and_answer_of_address_is_reported(
    here: Service, receiver: Receiver
) -> None:
    assert await try_address(here, name="CRM") == ["crm accepted the test event."]
    receiver.answers = [httpx.Response(401)]
    with pytest.raises(CommandRefused, match=r"HTTP 401.*ELICIT_EVENTS_CRM_URL"):
        await try_address(here, name="crm")


async def test_doctor_reports_waiting_and_dropped_events_and_disabled_address(
    here: Service, receiver: Receiver, clock: Clock
) -> None:
    async def events_finding() -> tuple[str, str]:
        (finding,) = await examine_events(here)
        return finding.standing, f"{finding.says} {finding.fix}"

    assert await events_finding() == ("ok", "crm has received all events None")
    receiver.is_down = True
    await send_one(here, timeout=WEEK)
    standing, words = await events_finding()
    assert (standing, "events that wait for crm: 1" in words) == ("note", True)
    for number in range(4):
        await asked(here, join=str(number), timeout=WEEK)
    await round_of(here)
    standing, words = await events_finding()
    assert (standing, "will not receive 2" in words) == ("wrong", True)
    receiver.is_down, receiver.answers = False, [httpx.Response(410)]
    await pass_time(here, clock, minutes=10)
    standing, words = await events_finding()
    assert (standing, "elicit events resume crm" in words) == ("wrong", True)
    assert "from now on" in (await resume_address(here, name="crm"))[0]
    assert (await events_finding())[0] == "ok"
