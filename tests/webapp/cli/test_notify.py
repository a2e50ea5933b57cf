"""`elicit notify test`: each address gets a test message. The doctor shows failed messages."""

from datetime import timedelta

import pytest

from tests.support.clock import Clock
from tests.support.notify_env import Deliveries, asked, notifying, round_of
from webapp.cli.doctor import examine_notifications
from webapp.cli.events import try_table
from webapp.command import CommandRefused
from webapp.notifications.delivery import NotifyTable
from webapp.stores.sqlite import MemoryStore

TABLE = NotifyTable(
    name="finance",
    to=("mailto://mail.example", "chat://chat.example"),
    escalate_after=timedelta(hours=1),
    escalate_to=("mailto://boss.example",),
)


async def test_test_message_goes_to_every_address_and_names_those_that_fail() -> None:
    sent = Deliveries()
    async with notifying(MemoryStore(), Clock(), sent, TABLE) as service:
        assert await try_table(service, name="finance") == [
            "to, address 1: sent.",
            "to, address 2: sent.",
            "escalate_to, address 1: sent.",
        ]
        assert {message.title for _, message in sent.sent} == {
            "Test message of http://127.0.0.1:8765",
        }
        sent.faults["chat://chat.example"] = ["HTTP 404"]
        with pytest.raises(CommandRefused) as refused:
            await try_table(service, name="finance")
        assert refused.value.sentences == ("to, address 2: not sent (HTTP 404).",)


async def test_unknown_table_is_refused_with_the_known_ones() -> None:
    async with notifying(MemoryStore(), Clock(), Deliveries(), TABLE) as service:
        with pytest.raises(CommandRefused) as refused:
            await try_table(service, name="finanse")
        assert str(refused.value) == (
            "elicit.toml has no table [notify.finanse]. The tables are: finance. Perhaps finance "
            "is meant."
        )


async def test_doctor_names_tables_whose_messages_could_not_be_sent() -> None:
    sent = Deliveries(faults={"mailto://mail.example": ["the connection was refused"]})
    async with notifying(MemoryStore(), Clock(), sent, TABLE) as service:
        await asked(service, timeout=timedelta(days=1))
        (fine,) = await examine_notifications(service)
        assert (fine.standing, "elicit notify test finance" in fine.says) == ("ok", True)
        await round_of(service)
        (failed,) = await examine_notifications(service)
        assert failed.standing == "note"
        assert failed.says == (
            "1 message to finance could not be sent yet (the connection was refused)"
        )
        assert "[notify.finance]" in (failed.fix or "")
