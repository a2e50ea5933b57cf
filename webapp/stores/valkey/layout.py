"""How records stand in the server: names of keys, shards, and a record as bytes.

A stored record is the length of its header, in four bytes, the header as MessagePack, and what is
sealed. The header is what scripts read: they know no integer beyond 2**53, so a version is text.
Times are microseconds since 1970; beyond the year 2255 an index rounds them, and the header does
not.
"""

from binascii import crc_hqx
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from msgspec import msgpack

from webapp.stores.store import Record

LAYOUT_VERSION = 1
LAYOUT_KEY = "elicit:layout"
# Of a server that stands alone: how many there were, and the identifier of its replication.
SERVER_KEY = "elicit:server"
SHARDS_OF_A_CLUSTER = 64
# Each shard has these; the head of each script says what they hold.
KEYS = ("fence", "records", "holders", "owned", "ids", "due", "erase", "claims", "checked")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LENGTH_BYTES = 4

# Name, place in ids, version that must stand there, place in holders, due_at, erase_at: write.lua.
Entry: TypeAlias = tuple[str, str, str | None, str | None, int | None, int | None]
# Version, key, due_at, erase_at, owner, kind, id, status.
_Header: TypeAlias = tuple[str, str | None, int | None, int | None, str, str, str, str]

_encode = msgpack.Encoder().encode
_decode_header = msgpack.Decoder(_Header).decode


def key(shard: int, name: str) -> str:
    """Return the key's name; what stands in braces alone says which slot of a cluster it is in."""
    return f"elicit:{{{shard}}}:{name}"


def shard_of(owner: str, *, shards: int) -> int:
    return crc_hqx(owner.encode(), 0) % shards


def name_of(owner: str, kind: str, id: str) -> str:
    """Return a record's name; the same of a key says where its holder stands."""
    return f"{owner}\0{kind}\0{id}"


def microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def check_texts(records: Sequence[Record]) -> None:
    """Refuse with ValueError a zero byte, which parts the names here."""
    for record in records:
        texts = (record.owner, record.kind, record.id, record.key or "")
        if any("\0" in text for text in texts):
            raise ValueError("a zero byte stands in a record's owner, kind, id or key")


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
    """Return the record as bytes; the entry is of the same record."""
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
