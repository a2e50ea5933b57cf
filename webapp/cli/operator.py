"""What the commands of an operator have in common: work on the store of this environment.

What could go wrong: a list that leaves out what it could not read, and looks whole. So that is
told, and the command has failed.
"""

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

from flows.errors import StoreUnavailable, Unreadable
from webapp.command import CommandRefused, quieten, settings_for, under_another_secret
from webapp.connecting import connect
from webapp.printing import printed, tell
from webapp.service import Service
from webapp.settings.settings import Settings
from webapp.stores import Record

OWNER_CHARACTERS = 6
WHAT_CHARACTERS = 60
NAMED_AT_MOST = 5
Work = Callable[[Service], Awaitable[Sequence[str]]]


def does(parser: argparse.ArgumentParser, work: Callable[..., Awaitable[Sequence[str]]]) -> None:
    """The command is this work, which gets the arguments by their names."""
    parser.set_defaults(run=partial(_run, work))


def operate(environment: Mapping[str, str], work: Work, *, say: Callable[[str], object]) -> None:
    """Do the work on the store of that environment. Raises Refused."""
    quieten()
    lines, left_out = asyncio.run(_operate(settings_for(environment), work))
    for line in lines:
        say(line)
    if left_out:
        raise _not_all(left_out)


def _run(work: Callable[..., Awaitable[Sequence[str]]], options: argparse.Namespace) -> None:
    given = {name: value for name, value in vars(options).items() if name != "run"}
    operate(os.environ, partial(work, **given), say=tell)


async def _operate(settings: Settings, work: Work) -> tuple[Sequence[str], Sequence[Record]]:
    """What it says, and what it could not read."""
    async with AsyncExitStack() as stack:
        try:
            service = await stack.enter_async_context(connect(settings))
        except ValueError as error:
            raise CommandRefused(f"ELICIT_STORE: {error}", status=2) from error
        except Unreadable as error:
            raise under_another_secret(settings) from error
        except StoreUnavailable as error:
            raise CommandRefused(error.why) from error
        try:
            left_out = service.elicitations.rows.left_out = []
            return await work(service), left_out
        except Unreadable as error:
            raise CommandRefused(f"The store cannot be read: {error}") from error
        except StoreUnavailable as error:
            raise CommandRefused(f"The store cannot be read: {error.why}") from error


def _not_all(left_out: Sequence[Record]) -> CommandRefused:
    """Rows that were damaged, or put there by somebody else: the others are listed."""
    kinds = sorted({record.kind for record in left_out})
    ids = ", ".join(record.id.removeprefix(record.owner) for record in left_out[:NAMED_AT_MOST])
    more = ", ..." if len(left_out) > NAMED_AT_MOST else ""
    count = "1 record" if len(left_out) == 1 else f"{len(left_out)} records"
    return CommandRefused(
        f"{count} of the store cannot be read ({', '.join(kinds)}: {printed(ids)}{more}); what can "
        "be read stands above. A backup from before has them: elicit restore"
    )
