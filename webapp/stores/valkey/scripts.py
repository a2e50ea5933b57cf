"""The scripts that run on the Valkey server. Each file's head describes its keys and arguments.

Risks: a script and its caller disagree about the meaning of an argument. The keys are therefore
named only in the script's head. The arguments are named in both places, and are compared on import.
"""

import re
from functools import lru_cache
from hashlib import sha1
from importlib.resources import files
from typing import TypeAlias

from webapp.stores.valkey.layout import KEYS, key

Argument: TypeAlias = str | bytes | int
Command: TypeAlias = tuple[Argument, ...]
_NAMED = re.compile(r"^-- (KEYS|ARGV)\[(\d+)(?:\.\.\.)?\] (\w*)", re.MULTILINE)


class Script:
    """A script. `arguments` are the names of its arguments; the last one may have many values."""

    def __init__(self, name: str, *arguments: str) -> None:
        self._text = files("webapp.stores.valkey").joinpath(f"{name}.lua").read_text("utf-8")
        named = _NAMED.findall(self._text)
        self._keys = _in_order(name, [each[1:] for each in named if each[0] == "KEYS"])
        declared = _in_order(name, [each[1:] for each in named if each[0] == "ARGV"])
        if declared != arguments:
            raise AssertionError(f"{name}.lua takes {declared}, and is given {arguments}")
        if not {*self._keys} <= {*KEYS, "names"}:
            raise AssertionError(f"{name}.lua has keys of its own: {self._keys}")
        digest = sha1(self._text.encode(), usedforsecurity=False).hexdigest()
        self._head = lru_cache(self._head_for)
        self._by_digest = ("EVALSHA", digest)

    def __call__(self, shard: int, *arguments: Argument, names: str = "owned") -> Command:
        """Return the command that runs the script in a shard.

        `names` is the index that a page reads.
        """
        return (*self._head(shard, names), *arguments)

    def with_text(self, command: Command) -> Command | None:
        """Return this script's command with the text in place of the digest, else None."""
        return ("EVAL", self._text, *command[2:]) if command[:2] == self._by_digest else None

    def _head_for(self, shard: int, names: str) -> Command:
        keys = [key(shard, names if each == "names" else each) for each in self._keys]
        return (*self._by_digest, len(keys), *keys)


def _in_order(script: str, numbered: list[tuple[str, str]]) -> tuple[str, ...]:
    if [int(number) for number, _ in numbered] != list(range(1, len(numbered) + 1)):
        raise AssertionError(f"the head of {script}.lua counts wrongly")
    return tuple(name for _, name in numbered)


WRITE = Script("write", "opening", "channel", "behind", "writes", "stored")
FIND = Script("find", "holder")
LIST = Script("list", "first", "last", "status", "limit")
DUE = Script("due", "now", "held", "limit")
CLAIM = Script("claim", "now", "held", "until", "names")
ERASE = Script("erase", "owner", "before", "limit")
CHECK = Script("check", "opening")
SCAN = Script("scan", "first")
FENCE = Script("fence", "why", "instead")
_ALL = (WRITE, FIND, LIST, DUE, CLAIM, ERASE, CHECK, SCAN, FENCE)


def with_script_text(command: Command) -> Command:
    """Return the command with the script's text, for a server that does not know the script."""
    return next((found for script in _ALL if (found := script.with_text(command))), command)
