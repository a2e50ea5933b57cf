"""Delivery: passes a message to Apprise, in a process of its own.

Risks: Apprise blocks, has no time limit of its own, and writes addresses with their passwords to
its log. A separate process does not block the event loop and can be killed, and its log is ignored.
The address is passed on stdin, where no list of processes shows it. The process gets the variables
that a network client needs, and none of this server's secrets.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import Struct, ValidationError, convert

from webapp.notifications.message import Message

# A function that sends a message to an address, and returns why that failed, or None.
Deliver: TypeAlias = Callable[[str, Message], Awaitable[str | None]]
SECONDS_AT_MOST: Final = 20.0
_CHECK_SECONDS_AT_MOST: Final = 60.0
# -P: files in the working directory cannot replace a library.
_COMMAND: Final = (sys.executable, "-P", str(Path(__file__).with_name("apprise_program.py")))
_VARIABLES: Final = frozenset(
    {
        *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
        *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    }
)
_NO_ANSWER: Final = "the process that sends messages ended without an answer"


class CheckedAddress(Struct, frozen=True, kw_only=True):
    """An address as Apprise reads it.

    `fault` is `scheme` (Apprise has no such service), `format` (something is missing or misspelt),
    `library` (the service needs one that is not installed), or None. `near` are similar schemes.
    """

    fault: str | None = None
    near: tuple[str, ...] = ()
    has_secret: bool = False


async def deliver(
    address: str, message: Message, *, seconds: float = SECONDS_AT_MOST
) -> str | None:
    """Send the message. Return why that failed, without any part of the address, or None."""
    asked = {"send": {"address": address, **message._asdict()}}
    try:
        async with asyncio.timeout(seconds):
            answer = await _answer_to(asked)
    except TimeoutError:
        return f"no answer within {seconds:.0f} seconds"
    except OSError as error:
        return f"no process could be started: {error.strerror}"
    match answer:
        case {"result": None}:
            return None
        case {"result": str(why)}:
            return why
        case _:
            return _NO_ANSWER


def check_addresses(addresses: Sequence[str]) -> Sequence[CheckedAddress]:
    """Check each address with Apprise, and send nothing. Raises OSError if the check fails."""
    asked = json.dumps({"check": addresses}).encode()
    try:
        process = subprocess.run(  # noqa: S603 - our own program
            _COMMAND,
            input=asked,
            capture_output=True,
            env=_environment(),
            timeout=_CHECK_SECONDS_AT_MOST,
            check=False,
        )
        found = convert(json.loads(process.stdout), dict[str, tuple[CheckedAddress, ...]])
        return found["result"]
    except (ValueError, ValidationError, KeyError, subprocess.TimeoutExpired):
        raise OSError(_NO_ANSWER) from None


async def _answer_to(asked: Mapping[str, Any]) -> object:
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(),
        start_new_session=True,  # Ctrl+C ends the server, which then waits for the message
    )
    try:
        answer, _ = await process.communicate(json.dumps(asked).encode())
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    with suppress(ValueError):
        return json.loads(answer)
    return None


def _environment() -> Mapping[str, str]:
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}
