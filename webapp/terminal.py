"""`elicit connect`: the account that a tool waits for, connected from a terminal."""

import asyncio
import sys
from collections.abc import Mapping
from datetime import timedelta

from flows.errors import ElicitError, Unreadable
from webapp.app import connect
from webapp.device import Terminal, connect_by_code, open_questions
from webapp.serving import LOOPBACK, Refused, quieten, settings_for, under_another_secret
from webapp.settings import Settings
from webapp.stores.store import StoreUnavailable


def connect_here(environment: Mapping[str, str], *, provider: str | None, port: int) -> int:
    """The exit status: 0 if it is connected."""
    quieten()
    try:
        settings = settings_for(environment, host=LOOPBACK, port=port)
        return asyncio.run(_connect(settings, provider))
    except Refused as refusal:
        return refusal.tell()


async def _connect(settings: Settings, provider: str | None) -> int:
    try:
        async with connect(settings) as service:
            waiting = await open_questions(service, provider=provider)
            if not waiting:
                raise Refused(
                    "No tool of yours waits for an account. Call the tool first, and leave it "
                    "waiting."
                )
            names = sorted({service.kinds.accounts.terms(asked).provider for asked in waiting})
            if len(names) > 1:
                raise Refused(f"Several are waited for; name one: {', '.join(names)}")
            terminal = Terminal(say=_say, is_right=_is_right, pause=_pause)
            is_connected = await connect_by_code(service, waiting[0], terminal)
    except Unreadable as error:
        raise under_another_secret(settings) from error
    except (ElicitError, StoreUnavailable) as error:
        raise Refused(str(error)) from error
    if is_connected:
        _say("It is connected, and the tool goes on.")
    return 0 if is_connected else 1


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def _is_right(question: str) -> bool:
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    line = await asyncio.to_thread(sys.stdin.readline)
    return line.strip().lower() in ("y", "yes")


async def _pause(duration: timedelta) -> None:
    await asyncio.sleep(duration.total_seconds())
