"""The layout of records in a Valkey server: names of keys, shards, and a record as bytes.

A stored record is the length of its header in four bytes, the header as MessagePack, and the sealed
content. Scripts read the header. Lua cannot represent integers above 2**53, so a version is text.
Times are microseconds since 1970. An index rounds times after the year 2255; the header does not.
"""

import re
from binascii import crc_hqx
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha1
from importlib.resources import files
from typing import TypeAlias

from msgspec import msgpack

from webapp.stores.store import Record

LAYOUT_VERSION = 1
LAYOUT_KEY = "elicit:layout"
# For a standalone server: the number of servers that this store has had so far, and the replication
# identifier of the last server.
SERVER_KEY = "elicit:server"
SHARDS_OF_A_CLUSTER = 64
# The keys of each shard. The head of each script describes their content.
KEYS = ("fence", "records", "holders", "owned", "ids", "due", "erase", "claims", "checked")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LENGTH_BYTES = 4

# Name, value in `ids`, expected version, name in `holders`, due_at, erase_at: see write.lua.
Entry: TypeAlias = tuple[str, str, str | None, str | None, int | None, int | None]
# Version, key, due_at, erase_at, owner, kind, id, status.
_Header: TypeAlias = tuple[str, str | None, int | None, int | None, str, str, str, str]

_encode = msgpack.Encoder().encode
_decode_header = msgpack.Decoder(_Header).decode


def key(shard: int, name: str) -> str:
    """Return the name of the key. A cluster uses only the part in braces to choose the slot."""
    return f"elicit:{{{shard}}}:{name}"


def shard_of(owner: str, *, shards: int) -> int:
    return crc_hqx(owner.encode(), 0) % shards


def name_of(owner: str, kind: str, id: str) -> str:
    """Return the record's name. With a key as `id`, return the key's name in `holders`."""
    return f"{owner}\0{kind}\0{id}"


def microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def check_texts(records: Sequence[Record]) -> None:
    """Raise ValueError for a zero byte, which separates the parts of a name here."""
    for record in records:
        texts = (record.owner, record.kind, record.id, record.key or "")
        if any("\0" in text for text in texts):
            raise ValueError("a record's owner, kind, id or key contains a zero byte")


def entry_of(record: Record, *, expected: str | None) -> Entry:
    owner, kind, id = record.owner, record.kind, record.id
    return (
        name_of(owner, kind, id),
        f"{kind}\0{id}\0{owner}",
        expected,
        None if record.key is None else name_of(owner, kind, record.key),
        None if record.due_at is None else microseconds(record.due_at),
        None if record.erase_at is None else microseconds(record.erase_at),
    )


def stored(record: Record, entry: Entry, *, version: int) -> bytes:
    """Return the record as bytes. `entry` belongs to the same record."""
    header: _Header = (
        str(version),
        record.key,
        entry[4],
        entry[5],
        record.owner,
        record.kind,
        record.id,
        record.status,
    )
    encoded = _encode(header)
    return b"".join((len(encoded).to_bytes(_LENGTH_BYTES, "big"), encoded, record.sealed))


def record_of(value: bytes) -> Record:
    end = _LENGTH_BYTES + int.from_bytes(value[:_LENGTH_BYTES], "big")
    version, held, due_at, erase_at, owner, kind, record_id, status = _decode_header(
        value[_LENGTH_BYTES:end]
    )
    return Record(
        owner=owner,
        kind=kind,
        id=record_id,
        status=status,
        key=held,
        due_at=None if due_at is None else _EPOCH + timedelta(microseconds=due_at),
        erase_at=None if erase_at is None else _EPOCH + timedelta(microseconds=erase_at),
        version=int(version),
        sealed=value[end:],
    )


# The scripts that run on the Valkey server. Each file's head describes its keys and arguments.
#
# Risks: a script and its caller disagree about the meaning of an argument. The keys are therefore
# named only in the script's head. The arguments are named in both places, and are compared on
# import.

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
            raise AssertionError(
                f"{name}.lua declares the arguments {declared}, but its caller passes {arguments}"
            )
        if not {*self._keys} <= {*KEYS, "names"}:
            raise AssertionError(
                f"{name}.lua declares other keys than those of a shard: {self._keys}"
            )
        digest = sha1(self._text.encode(), usedforsecurity=False).hexdigest()
        self._head = lru_cache(self._head_for)
        self._by_digest = ("EVALSHA", digest)

    def __call__(self, shard: int, *arguments: Argument, names: str = "owned") -> Command:
        """Return the command that runs the script in a shard.

        `names` is the index to read ("owned" or "ids"), if the script has a key `names`.
        """
        return (*self._head(shard, names), *arguments)

    def with_text(self, command: Command) -> Command | None:
        """Return an EVAL for a command that calls this script, or None for other commands."""
        return ("EVAL", self._text, *command[2:]) if command[:2] == self._by_digest else None

    def _head_for(self, shard: int, names: str) -> Command:
        keys = [key(shard, names if each == "names" else each) for each in self._keys]
        return (*self._by_digest, len(keys), *keys)


def _in_order(script: str, numbered: list[tuple[str, str]]) -> tuple[str, ...]:
    if [int(number) for number, _ in numbered] != list(range(1, len(numbered) + 1)):
        raise AssertionError(f"the head of {script}.lua has a wrong number of keys or arguments")
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
