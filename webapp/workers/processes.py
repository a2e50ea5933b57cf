"""Detection of how many processes were requested to serve one application.

uvicorn and gunicorn can be configured by an option, a variable, a file or a program. Their
effective configuration is found on the call stack, because their code runs this code. For other
servers, the command line shows the number (`--workers`, for some `-w`), and every worker process
has the same command line.
"""

import re
from collections.abc import Sequence
from pathlib import PurePath
from types import FrameType

from flows.errors import StoreUnavailable

# The server's module, and the attribute of `self` in it that has the configuration.
_SERVERS = {"uvicorn.server": "config", "gunicorn.arbiter": "cfg"}
_STARTERS = frozenset({"hypercorn", "granian"})
_START_ONE = (
    "start it with one worker: --workers 1 (and no other number in WEB_CONCURRENCY, "
    "GUNICORN_CMD_ARGS, gunicorn.conf.py or uvicorn.run(workers=)). One worker also serves many "
    "people at once."
)
_OPTION = re.compile(r"(?:--workers|-w)(?:=?(?P<number>\d+))?")


def must_share(
    arguments: Sequence[str],
    *,
    store: str,
    has_sandbox: bool = False,
    caller: FrameType | None = None,
) -> int:
    """Return how many processes were requested; 1 if nothing says so.

    Raises StoreUnavailable if several processes cannot serve this application together.
    """
    number = max(_of_starter(arguments), _of_server(caller))
    if number > 1 and store == "memory:":
        raise StoreUnavailable(
            f"{number} processes would serve this application, but the store memory: is not shared "
            "between processes: a call that waits in one process does not receive an answer that "
            f"arrives at another. Set ELICIT_STORE to a file or a server, or {_START_ONE}"
        )
    if number > 1 and has_sandbox:
        raise StoreUnavailable(
            f"{number} processes would serve this application, and each would start its own "
            "sandbox, with its own accounts. Serve it with `elicit serve --sandbox --workers "
            f"{number}`, which shares one sandbox, or {_START_ONE}"
        )
    return number


def _of_server(frame: FrameType | None) -> int:
    """Return the worker count of the server whose code calls this frame."""
    number = 1
    while frame is not None:
        kept = _SERVERS.get(frame.f_globals.get("__name__", ""))
        if kept is not None:
            told = getattr(frame.f_locals.get("self"), kept, None)
            number = max(number, getattr(told, "workers", None) or 1)
        frame = frame.f_back
    return number


def _of_starter(arguments: Sequence[str]) -> int:
    if not arguments or _starter(PurePath(arguments[0])) not in _STARTERS:
        return 1
    for at, word in enumerate(arguments):
        found = _OPTION.fullmatch(word)
        if found is not None:
            return _number(found["number"] or "".join(arguments[at + 1 : at + 2]))
    return 1


def _starter(program: PurePath) -> str:
    """Return the program's name, such as granian for `.../granian/__main__.py` (`python -m`)."""
    return program.parent.name if program.name == "__main__.py" else program.name


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 1
