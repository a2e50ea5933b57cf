"""`elicit notify test NAME`: send a test message to the addresses of a table `[notify.NAME]`."""

import argparse
from collections.abc import Sequence

from webapp.cli.arguments import commands_of
from webapp.cli.operator import does
from webapp.command import CommandRefused
from webapp.service import Service
from webapp.settings.toml_tables import meant


def declare(parser: argparse.ArgumentParser) -> None:
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
