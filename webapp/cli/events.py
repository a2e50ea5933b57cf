"""`elicit events` and `elicit notify`: list, replay and test outgoing events and messages."""

import argparse
from collections.abc import Sequence

from flows.shown import counted
from webapp.cli.arguments import commands_of
from webapp.cli.operator import does, lists
from webapp.cli.table import Table, find_by_prefix
from webapp.command import CommandRefused
from webapp.events.addresses import EventAddress, new_secret
from webapp.operations.rows import EventRow, event_row
from webapp.printing import print_text
from webapp.service import Service
from webapp.settings.parsers import meant

COLUMNS = ("id", "address", "type", "status", "why", "tries", "happened_at", "next_at")
_SOON = "A server sends the event within seconds."


def declare(parser: argparse.ArgumentParser) -> None:
    add_command = commands_of(parser)
    words = "list events that were sent or are waiting, newest first"
    lists(add_command("list", help=words), list_events, of=EventRow)
    words = "send events again, each with its id"
    replaying = add_command("replay", help=words)
    meant = replaying.add_mutually_exclusive_group(required=True)
    meant.add_argument(
        "id",
        nargs="?",
        metavar="ID",
        help="the id of an event, as elicit events list shows it, or its beginning",
    )
    meant.add_argument(
        "--given-up",
        metavar="NAME",
        help="send again all events that the server has given up sending to an address",
    )
    does(replaying, replay_events)
    testing = add_command("test", help="send a test event to an address")
    resuming = add_command("resume", help="resume sending to an address that answered 410 (gone)")
    for command, work in ((testing, try_address), (resuming, resume_address)):
        command.add_argument("name", metavar="NAME", help="as in ELICIT_EVENTS_{NAME}_URL")
        does(command, work)
    secret = add_command("secret", help="create a secret, for ELICIT_EVENTS_{NAME}_SECRET")
    secret.set_defaults(run=_make_secret)


async def list_events(service: Service) -> Table[EventRow]:
    """List the events, the latest first."""
    rows = [event_row(event) for event in await service.events.all()]
    return Table(rows=rows, columns=COLUMNS, nothing="No event is stored.")


async def replay_events(
    service: Service, *, id: str | None = None, given_up: str | None = None
) -> Sequence[str]:
    """Send an event again, or all events that were given up. Raises CommandRefused."""
    events = await service.events.all()
    if given_up is None:
        there = {event.webhook_id: event for event in events}
        meant = find_by_prefix(id or "", there, what="event", shown_by="events list")
        await service.events.replay(meant.webhook_id)
        return [f"{meant.type} for {meant.address}. {_SOON}"]
    address, replayed = _address(service, given_up), 0
    for event in events:
        if event.address == address.name and event.status == "given up":
            await service.events.replay(event.webhook_id)
            replayed += 1
    return [f"{counted(replayed, 'event')} for {address.name}. A server sends them within seconds."]


async def try_address(service: Service, *, name: str) -> Sequence[str]:
    """Send a test event. Raises CommandRefused if the receiver does not accept it."""
    address = _address(service, name)
    why = await service.events.test(address)
    if why is not None:
        raise CommandRefused(
            f"{address.name} did not accept the event: {why.rstrip('.')}. Check "
            f"ELICIT_EVENTS_{address.name.upper()}_URL, and that its receiver verifies with the "
            "same secret."
        )
    return [f"{address.name} accepted the test event."]


async def resume_address(service: Service, *, name: str) -> Sequence[str]:
    """Let an ended address receive new events again. Raises CommandRefused."""
    address = _address(service, name)
    await service.events.resume(address)
    again = f"elicit events replay --given-up {address.name}"
    return [
        f"{address.name} receives events from now on. To send the ones that were given up: {again}"
    ]


def _make_secret(_: argparse.Namespace) -> None:
    print_text(new_secret())


def _address(service: Service, name: str) -> EventAddress:
    address = service.events.addresses.get(name.lower())
    if address is None:
        known = ", ".join(service.events.addresses) or "none"
        raise CommandRefused(
            f"{name} is not an address of events; the addresses are {known}. "
            f"ELICIT_EVENTS_{{NAME}}_URL adds one.",
            status=2,
        )
    return address


# `elicit notify`


def declare_notify(parser: argparse.ArgumentParser) -> None:
    add_command = commands_of(parser)
    words = "send a test message to each address of a table [notify.NAME] and of its escalate_to"
    testing = add_command("test", help=words)
    testing.add_argument("name", metavar="NAME", help="the name of the table in elicit.toml")
    does(testing, try_table)


async def try_table(service: Service, *, name: str) -> Sequence[str]:
    """Send a test message. Raises CommandRefused if an address does not accept it."""
    tables = service.notifier.tables
    if name not in tables:
        known = ", ".join(tables) or "none"
        raise CommandRefused(
            f"elicit.toml has no table [notify.{name}]. The tables are: {known}."
            + meant(name, tables),
            status=2,
        )
    results = await service.notifier.test(tables[name])
    failed = [f"{place}: not sent ({why})." for place, why in results if why is not None]
    if failed:
        raise CommandRefused(*failed)
    return [f"{place}: sent." for place, _ in results]
