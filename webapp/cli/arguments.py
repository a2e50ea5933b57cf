"""Arguments that several commands share: ports, ids, and commands within a command."""

import argparse
import re
from collections.abc import Callable, Sequence

# An id as lists show it, or its beginning, or an id with its owner's tag, as tools see it.
_ID = re.compile(r"[A-Za-z0-9_-]{1,24}|[A-Za-z0-9_-]{20}([A-Za-z0-9_-]{24})")
_PLACE = 2  # the position of an id: elicit payments refund ID; one less in `elicit show ID`
_OWNER = "--owner"
_BEGINNING = re.compile(r"-[A-Za-z0-9_][A-Za-z0-9_-]+")
_DASHED = re.compile(r"-(?:[A-Za-z0-9_-]{23}|[A-Za-z0-9_-]{43})")
_PLAIN = "id:"


def with_ids(arguments: Sequence[str]) -> list[str]:
    """Rewrite ids and owners that begin with "-", so that argparse takes them for values."""
    found = list[str]()
    id_index = 1 if arguments[:1] == ["show"] else _PLACE
    for index, word in enumerate(arguments):
        if found[-1:] == [_OWNER] and word.startswith("-"):
            found[-1] = f"{_OWNER}={word}"
        elif _DASHED.fullmatch(word) or (index == id_index and _BEGINNING.fullmatch(word)):
            found.append(_PLAIN + word)
        else:
            found.append(word)
    return found


def commands_of(parser: argparse.ArgumentParser) -> Callable[..., argparse.ArgumentParser]:
    """Return the function that adds a command within a command."""
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add_command(
        name: str,
        *,
        help: str,  # noqa: A002 - the name that argparse gives it
        description: str | None = None,
    ) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help, description=description or sentence_of(help))

    return add_command


def sentence_of(says: str) -> str:
    """Turn a command's text in the list of commands into a sentence for its own --help."""
    return f"{says[:1].upper()}{says[1:]}."


def add_id(parser: argparse.ArgumentParser, *, shown_by: str) -> None:
    parser.add_argument(
        "id",
        metavar="ID",
        type=_id,
        help=f"the id that elicit {shown_by} list shows, or its unique beginning",
    )


def add_port(parser: argparse.ArgumentParser, *, default: int) -> None:
    """Add the option `--port` for a server on this machine."""
    parser.add_argument(
        "--port",
        type=port,
        default=default,
        help="the port of the server at 127.0.0.1, unless ELICIT_URL is set; default: %(default)s",
    )


def port(text: str) -> int:
    found = int(text) if text.isascii() and text.isdecimal() else -1
    if not 0 <= found <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535; 0 means a free one)")
    return found


def _id(text: str) -> str:
    id = text.removeprefix(_PLAIN)
    found = _ID.fullmatch(id)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{id!r} is not an id: ids have 24 letters, digits, - or _; the first few are enough"
        )
    return found[1] or id
