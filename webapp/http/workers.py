"""How many processes are asked to serve one application, by what each of them can see.

It is in the arguments (`--workers`, for some `-w`), which each process that is started has as well,
or, for two of the programs, in WEB_CONCURRENCY, or for one in GUNICORN_CMD_ARGS.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from flows.errors import StoreUnavailable

_BY_VARIABLE = frozenset({"uvicorn", "gunicorn"})
_STARTERS = _BY_VARIABLE | {"hypercorn", "granian", "fastapi"}
_OPTION = re.compile(r"(?:--workers|-w)(?:=?(?P<number>\d+))?")


def must_be_one_process(environment: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Raises StoreUnavailable where several processes were asked for.

    A client's session and its streams are in one of them (MCP 2025-11-25), and an answer would come
    to another.
    """
    number = _workers(environment, arguments)
    if number > 1:
        raise StoreUnavailable(
            f"{number} processes are to serve this application, and a call that waits in one does "
            "not hear of an answer that comes to another. Start it with one worker: --workers 1 "
            "(and no other number in WEB_CONCURRENCY or GUNICORN_CMD_ARGS). It serves many people "
            "at once all the same."
        )


def _workers(environment: Mapping[str, str], arguments: Sequence[str]) -> int:
    starter = _starter(PurePath(arguments[0])) if arguments else ""
    if starter not in _STARTERS:
        return 1
    if starter == "gunicorn":
        arguments = [*arguments, *environment.get("GUNICORN_CMD_ARGS", "").split()]
    for at, word in enumerate(arguments):
        found = _OPTION.fullmatch(word)
        if found is not None:
            return _number(found["number"] or "".join(arguments[at + 1 : at + 2]))
    return _number(environment.get("WEB_CONCURRENCY", "")) if starter in _BY_VARIABLE else 1


def _starter(program: PurePath) -> str:
    """`/venv/bin/uvicorn`, or `.../uvicorn/__main__.py` where it was started by `python -m`."""
    return program.parent.name if program.name == "__main__.py" else program.name


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 1
