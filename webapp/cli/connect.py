"""`elicit connect`: the account that a tool waits for, connected from a terminal."""

import argparse
import asyncio
import os
import sys
from datetime import timedelta

from flows.errors import ElicitError, StoreUnavailable, Unreadable
from webapp.cli.arguments import add_port
from webapp.cli.device_flow import (
    LONGEST_QUOTATION,
    Terminal,
    chosen,
    connect_by_code,
    open_questions,
    plain,
)
from webapp.command import CommandRefused, quieten, settings_for, under_another_secret
from webapp.connecting import connect
from webapp.printing import tell
from webapp.settings.settings import DEFAULT_PORT, Settings


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Connect the account that a tool of yours waits for, by a code that you enter in any "
        "browser, on any device. For servers that you reach by a terminal only."
    )
    parser.add_argument(
        "provider",
        nargs="?",
        metavar="PROVIDER",
        help="such as github; else whichever a tool waits for",
    )
    add_port(parser, default=DEFAULT_PORT)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    quieten()
    settings = settings_for(os.environ, port=options.port)
    return asyncio.run(_connect(settings, options.provider))


async def _connect(settings: Settings, provider: str | None) -> int:
    terminal = Terminal(say=tell, choose=_choose, is_right=_is_right, pause=_pause)
    try:
        async with connect(settings) as service:
            waiting = await open_questions(service, provider=provider)
            if not waiting:
                raise CommandRefused(
                    "No tool of yours waits for an account. Call the tool first, and leave it "
                    "waiting."
                )
            asked = await chosen(service, waiting, terminal)
            if asked is None:
                raise CommandRefused("None was chosen, and nothing was done.")
            is_connected = await connect_by_code(service, asked, terminal)
    except Unreadable as error:
        raise under_another_secret(settings) from error
    except StoreUnavailable as error:
        raise CommandRefused(plain(error.why, limit=LONGEST_QUOTATION)) from error
    except ElicitError as error:
        raise CommandRefused(plain(str(error), limit=LONGEST_QUOTATION)) from error
    return 0 if is_connected else 1


async def _choose(number: int) -> int | None:
    line = await _line(f"Which one? [1-{number}] ")
    return (
        int(line) if line.isascii() and line.isdigit() and len(line) <= len(str(number)) else None
    )


async def _is_right(question: str) -> bool:
    return (await _line(f"{question} [y/N] ")).lower() in ("y", "yes")


async def _line(prompt: str) -> str:
    """What is typed; nothing where the input has ended."""
    tell(prompt, end="")
    line: str = await asyncio.to_thread(sys.stdin.readline)
    return line.strip()


async def _pause(duration: timedelta) -> None:
    await asyncio.sleep(duration.total_seconds())
