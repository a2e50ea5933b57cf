"""Functions that commands share: the settings, the store, a quiet log, and refusals."""

import contextlib
import logging
import shlex
import shutil
import sys
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from flows.errors import ElicitError, StoreUnavailable, Unreadable
from webapp.connecting import connect, utc_now
from webapp.logs.events import TOOL_LOGGERS, mask_tool_logs, show_events
from webapp.logs.lines import LogSettings, take_over
from webapp.printing import print_text
from webapp.service import Service
from webapp.settings.key_usage import open_noted
from webapp.settings.settings import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    STORE,
    BadSettings,
    Settings,
    read_settings,
)
from webapp.stores import Store, is_gone, why_not_opened, without_password
from webapp.stores.moving import is_half, moved_to
from webapp.stores.opening import SQLITE

# These loggers write every requested address at INFO, and addresses can contain tokens.
TALKATIVE_LOGGERS = ("httpx", "httpx2", "httpcore", "httpcore2", "mcp")


class CommandRefused(Exception):
    """A refusal of a command, with sentences for the terminal and the exit status."""

    def __init__(self, *sentences: str, status: int = 1) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences
        self.status = status

    def print_sentences(self) -> int:
        for sentence in self.sentences:
            print_text(f"elicit: {sentence}", out=sys.stderr)
        return self.status


def own_command() -> str:
    """Return what the user types to run this installation: `elicit`, or its path."""
    start = Path(sys.argv[0])
    own = start if start.name == "elicit" else Path(sys.executable).with_name("elicit")
    found = shutil.which("elicit")
    if not own.is_file():
        return f"{shlex.quote(sys.executable)} -m elicit_url"
    if found is not None and own.samefile(found):
        return "elicit"
    absolute, here = own.absolute(), Path.cwd()
    return shlex.quote(str(absolute.relative_to(here) if here in absolute.parents else absolute))


def settings_for(
    environment: Mapping[str, str], *, host: str = DEFAULT_HOST, port: int = DEFAULT_PORT
) -> Settings:
    """Return the settings of the environment. Raises CommandRefused."""
    try:
        return read_settings(environment, host=host, port=port)
    except BadSettings as error:
        raise CommandRefused(*error.problems, status=2) from None


def quieten(level: int = logging.WARNING, *, log: LogSettings | None = None) -> None:
    """Keep addresses out of the log, whatever the server's author configured for the root logger.

    `log` are the log settings of a process that serves.
    """
    if log is None:
        show_events()
    else:
        take_over(log)
    for logger in TALKATIVE_LOGGERS:
        logging.getLogger(logger).setLevel(level)
    for logger in TOOL_LOGGERS:
        logging.getLogger(logger).addFilter(_is_unexpected)
    mask_tool_logs()


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Filter out ElicitErrors such as a declined question, which the library logs as failures."""
    error = record.exc_info[1] if record.exc_info else None
    while error is not None:
        if isinstance(error, ElicitError):
            return False
        error = error.__cause__
    return True


def store_refused(error: StoreUnavailable | ValueError) -> CommandRefused:
    """Return the refusal for a store that did not open: status 2 for a bad address, else 1."""
    return CommandRefused(why_not_opened(error), status=2 if isinstance(error, ValueError) else 1)


def must_exist(settings: Settings, environment: Mapping[str, str]) -> None:
    """Refuse a store file in ELICIT_STORE that does not exist, because reading must not create it.

    Raises CommandRefused.
    """
    is_missing = False
    if environment.get(STORE.name) and settings.store.startswith(SQLITE):
        with contextlib.suppress(OSError):  # opening the store raises an error that says more
            is_missing = is_gone(settings.store)
    if is_missing:
        raise CommandRefused(
            f"There is no store at {settings.store}. Correct ELICIT_STORE, or start a server: it "
            "creates the store.",
            status=2,
        )


def opened_store(settings: Settings) -> AbstractAsyncContextManager[Store]:
    """Open the store of the settings. Raises CommandRefused."""
    return until_closed(open_noted(settings, clock=utc_now))


@contextlib.asynccontextmanager
async def until_closed(opening: Awaitable[Store]) -> AsyncGenerator[Store]:
    """Open the store, and close it at the end of the block. Raises CommandRefused."""
    try:
        store = await opening
    except (StoreUnavailable, ValueError) as error:
        raise store_refused(error) from error
    try:
        yield store
    finally:
        await store.aclose()


@contextlib.asynccontextmanager
async def connected(settings: Settings) -> AsyncGenerator[Service]:
    """Yield the service without a server, on the store of these settings. Raises CommandRefused."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            service = await stack.enter_async_context(connect(settings))
        except (StoreUnavailable, ValueError) as error:
            raise store_refused(error) from error
        except Unreadable as error:
            raise under_another_secret(settings) from error
        await warn_if_fenced(service.elicitations.store)
        yield service


async def must_be_unfenced(store: Store) -> None:
    """Raise CommandRefused for a fenced store: with status 2 if the store has moved, else 1."""
    if (why := await _fence_of(store)) is not None:
        raise CommandRefused(why, status=2 if moved_to(why) is not None else 1)


async def warn_if_fenced(store: Store) -> None:
    """Warn if the store is fenced, and refuse to list a partial copy of a store.

    Raises CommandRefused.
    """
    if (why := await _fence_of(store)) is not None:
        if is_half(why):
            raise CommandRefused(why)
        print_text(f"elicit: {why}", out=sys.stderr)


async def _fence_of(store: Store) -> str | None:
    """Return the reason of the store's fence, or None. Raises CommandRefused."""
    try:
        return await store.fenced()
    except StoreUnavailable as error:
        raise store_refused(error) from error


def under_another_secret(settings: Settings) -> CommandRefused:
    return CommandRefused(
        f"{without_password(settings.store)} was encrypted with another secret: set ELICIT_SECRET "
        "to that secret (or new,old), or set ELICIT_STORE to another store.",
        status=2,
    )
