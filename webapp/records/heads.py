"""Heads: signed documents that record the length and hash of every owner's audit chain.

A chain alone cannot show that its end was removed, that an owner's chain was deleted, or that the
store was reset to an older state. A copy of a head outside the store shows all three. Once a day,
one process makes a head: heads are numbered, and the store accepts only one head for each number.
Heads are in the store, and each head contains the hash of the previous head. The server deletes a
head's list of owners after three days, and stores the signed part as long as the audit log. The
signature is Ed25519 (RFC 8032) with a key that is derived from the keyring, so anyone with the
public key can verify the signature.

Risks: someone forges a document. So a document is accepted only if the hash of its list is the
signed hash, and if a key of this keyring or a key that the operator names has signed it.
"""

import asyncio
import hashlib
import logging
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Struct
from msgspec.structs import replace

from flows.crypto.tokens import Ring
from flows.errors import ElicitError, Unreadable
from webapp.records.chain import AUDIT, HEAD, AuditChain, Linking, block_of
from webapp.records.owners import SERVICE, Owners
from webapp.stores import Conflict, Record
from webapp.stores.store import plain_record

HEAD_KIND: Final = "audit head"
OWNERS_KIND: Final = "audit owners"
NEWEST: Final = "newest"
EVERY: Final = timedelta(days=1)
_TRIED_AGAIN: Final = timedelta(hours=1)
_LIST_RETENTION: Final = timedelta(days=3)
_OWNERS_A_ROW: Final = 400
_PAGE: Final = 100
_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.encode


class BadHead(ElicitError):
    """The document is not a head, or differs from what was signed."""


class OwnersHead(Struct, frozen=True, array_like=True):
    """The end of one owner's chain. Its last entry is stored until `until`, in Unix seconds."""

    owner: str
    count: int
    until: int
    hash: bytes


class SignedHead(Struct, frozen=True, kw_only=True):
    """The signed part of a head. It contains the hash of the owners' list instead of the list."""

    number: int
    at: datetime
    owners: int
    entries: int
    digest: bytes  # SHA-256 of the list
    former: bytes  # SHA-256 of the previous head; empty for the first
    key: bytes
    signature: bytes = b""


class HeadDocument(Struct, frozen=True, kw_only=True):
    """A head as it is exported, with its list."""

    elicit_audit_head: SignedHead
    chains: tuple[OwnersHead, ...]


class StoredHeads(Struct, frozen=True, kw_only=True):
    """The heads of a store, oldest first, with the lists that are still stored."""

    heads: tuple[SignedHead, ...]
    documents: tuple[HeadDocument, ...]
    faults: tuple[str, ...]


class Heads:
    """The maker and reader of heads; one per process."""

    def __init__(
        self, owners: Owners, ring: Ring, chain: AuditChain, *, folders: Sequence[Path] = ()
    ) -> None:
        """`folders` are the folders that each day's document is written to."""
        self._owners = owners
        self._store = owners.store
        self._ring = ring
        self._chain = chain
        self._folders = folders
        self._look_at: datetime | None = None  # the time of the next check

    @property
    def public_keys(self) -> tuple[bytes, ...]:
        """The public keys of all secrets, newest first, 32 bytes each."""
        return tuple(
            Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
            for seed in self._ring.derive_all("audit head")
        )

    async def make_in_time(self) -> None:
        """Make today's head if there is none, and write its document to each folder.

        After an error, calls within the next hour do nothing, and a later call tries again.

        Raises:
            BadHead: The stored head is damaged.
            OSError: A folder is not writable.
        """
        now = self._chain.clock()
        if self._look_at is not None and now < self._look_at:
            return
        self._look_at = now + _TRIED_AGAIN
        newest = await self.newest()
        if newest is None or newest.at + EVERY <= now:
            with suppress(Conflict):  # another process makes the head
                newest = (await self.make()).elicit_audit_head
                _log.info("audit.head_made", extra={"number": newest.number})
        await self._export()
        self._look_at = now + EVERY if newest is None else newest.at + EVERY

    async def make(self) -> HeadDocument:
        """Make a head now. Raises Conflict if another process makes one at the same time."""
        found = await self._store.find(SERVICE, HEAD_KIND, NEWEST)
        previous = None if found is None else _signed(found)
        now = self._chain.clock()
        chains = await self._list()
        unsigned = SignedHead(
            number=1 if previous is None else previous.number + 1,
            at=now,
            owners=len(chains),
            entries=sum(each.count for each in chains),
            digest=_digest(chains),
            former=b"" if previous is None else hashlib.sha256(_encode(previous)).digest(),
            key=self.public_keys[0],
        )
        signer = Ed25519PrivateKey.from_private_bytes(self._ring.derive_all("audit head")[0])
        signed = replace(unsigned, signature=signer.sign(_encode(unsigned)))
        for start in range(0, len(chains), _OWNERS_A_ROW):
            # A Conflict means that another attempt has written this row. The signed hash shows
            # whether the row differs.
            with suppress(Conflict):
                await self._store.write(
                    _record(
                        OWNERS_KIND,
                        f"{SERVICE}{signed.number:012d}.{now.timestamp():.0f}.{start:09d}",
                        erase_at=now + _LIST_RETENTION,
                        sealed=_encode(chains[start : start + _OWNERS_A_ROW]),
                    )
                )
        row = _record(
            HEAD_KIND,
            f"{SERVICE}{signed.number:012d}",
            erase_at=now + max(self._chain.retention, _LIST_RETENTION),
            sealed=_encode(signed),
        )
        rows = [] if found is None else [replace(found, key=None)]
        await self._store.write(*rows, replace(row, key=NEWEST))
        return HeadDocument(elicit_audit_head=signed, chains=tuple(chains))

    async def newest(self) -> SignedHead | None:
        found = await self._store.find(SERVICE, HEAD_KIND, NEWEST)
        return None if found is None else _signed(found)

    async def stored(self, *, key: bytes | None = None) -> "StoredHeads":
        """Return the heads of the store, the lists that are still stored, and the faults found.

        The newest head must be signed by a key of this keyring, or by `key`. Each earlier head must
        match the hash in the next head, so no older secret is needed.
        """
        found, wrong = list[SignedHead](), list[str]()
        after, has_newest = None, True
        while page := await self._store.list(HEAD_KIND, owner=SERVICE, after=after, limit=_PAGE):
            for record in page:
                has_newest = record.key == NEWEST
                try:
                    found.append(_signed(record))
                except BadHead as error:
                    wrong.append(str(error))
            after = page[-1].id
        if not has_newest:
            wrong.append("The newest head of the store is missing.")
        wrong += [why for pair in pairwise(found) for why in self._between(*pair)]
        documents = list[HeadDocument]()
        try:
            for signed in found:
                if signed.at + _LIST_RETENTION > self._chain.clock():
                    documents.append(await self._document(signed))
            if found:
                _must_be_signed(found[-1], (*self.public_keys, *((key,) if key else ())))
        except BadHead as error:
            wrong.append(str(error))
        return StoredHeads(heads=tuple(found), documents=tuple(documents), faults=tuple(wrong))

    def _between(self, earlier: SignedHead, later: SignedHead) -> Sequence[str]:
        """Return the faults between two stored heads. Heads between them may have expired."""
        if later.number == earlier.number + 1:
            if later.former == hashlib.sha256(_encode(earlier)).digest():
                return ()
            is_changed = f"Head {earlier.number} of the store is not the original"
            return [f"{is_changed}: head {later.number} follows a different head."]
        if self._has_expired(earlier):
            return ()
        return [f"Heads between {earlier.number} and {later.number} of the store are missing."]

    def _has_expired(self, head: SignedHead) -> bool:
        return head.at + max(self._chain.retention, _LIST_RETENTION) <= self._chain.clock()

    def compare(
        self, document: HeadDocument, stored: "StoredHeads", *, key: bytes | None = None
    ) -> Sequence[str]:
        """Return the faults of the store, according to a head that was stored elsewhere.

        The signature is not verified if the store has the same head and no faults.

        Raises:
            BadHead: The document's signature is invalid, or its list of owners was changed.
        """
        signed = document.elicit_audit_head
        same = [head for head in stored.heads if head.number == signed.number]
        if stored.faults or same != [signed]:
            self.must_be_signed(document, key=key)
        _must_have_its_list(document)
        if same == [signed] or (not same and self._has_expired(signed)):
            return ()
        is_there = "differs from the one in" if same else "is missing from"
        return [f"Head {signed.number} of {signed.at.isoformat()} {is_there} the store."]

    async def in_folders(self) -> list[tuple[Path, list[HeadDocument | BadHead]]]:
        """Return each folder of ELICIT_AUDIT_HEADS with the heads in the folder. Raises OSError."""
        return [(each, await asyncio.to_thread(_documents_in, each)) for each in self._folders]

    async def _document(self, signed: SignedHead) -> HeadDocument:
        """Return the head with its list. Raises BadHead."""
        after = prefix = f"{SERVICE}{signed.number:012d}.{signed.at.timestamp():.0f}."
        chains = list[OwnersHead]()
        while page := await self._store.list(OWNERS_KIND, owner=SERVICE, after=after, limit=_PAGE):
            for record in page:
                if record.id.startswith(prefix):
                    chains += _decoded_list(record)
            after = page[-1].id
        document = HeadDocument(elicit_audit_head=signed, chains=tuple(chains))
        _must_have_its_list(document)
        return document

    async def _export(self) -> None:
        """Write the newest head to the folders, if its list is still stored."""
        newest = await self.newest() if self._folders else None
        if newest is None or newest.at + _LIST_RETENTION <= self._chain.clock():
            return
        document = await self._document(newest)
        self.must_be_signed(document)
        for folder in self._folders:
            await asyncio.to_thread(_put_in, folder, document)

    def must_be_signed(self, document: HeadDocument, *, key: bytes | None = None) -> None:
        """Verify the signature and the list of a document. Raises BadHead.

        If `key` is None, the signature must be by one of this keyring's keys.
        """
        signers = self.public_keys if key is None else (key,)
        _must_be_signed(document.elicit_audit_head, signers)
        _must_have_its_list(document)

    async def _list(self) -> list[OwnersHead]:
        found, after = list[OwnersHead](), None
        while page := await self._store.list(AUDIT, status=HEAD, after=after, limit=_PAGE):
            for record in page:
                try:
                    end = Linking(self._owners.pepper, record.owner).end_of(block_of(record))
                except Unreadable:  # verification and earlier heads report the damaged block
                    _log.exception("record.unreadable", extra={"kind": record.kind})
                    continue
                found.append(
                    OwnersHead(owner=record.owner, count=end.count, until=end.until, hash=end.hash)
                )
            after = page[-1].id
        return found


def written_document(document: HeadDocument) -> str:
    """Return the document as file content: JSON, with one owner per line."""
    head = msgspec.json.encode(document.elicit_audit_head).decode()
    lines = ",\n".join(msgspec.json.encode(each).decode() for each in document.chains)
    return f'{{"elicit_audit_head":{head},\n"chains":[\n{lines}\n]}}\n'


def _put_in(folder: Path, document: HeadDocument) -> None:
    """Write the document to the folder atomically. Never overwrite an existing file."""
    head = document.elicit_audit_head
    path = folder / f"head-{head.at:%Y%m%dT%H%M%SZ}-{head.number}.json"
    if path.exists():
        return
    draft = folder / f".{path.name}.{secrets.token_hex(4)}"
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(written_document(document))
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)


def _documents_in(folder: Path) -> list[HeadDocument | BadHead]:
    """Read all heads in the folder, oldest first. Raises OSError."""
    found = list[HeadDocument | BadHead]()
    for path in sorted(each for each in folder.iterdir() if each.match("head-*.json")):
        try:
            found.append(read_document(path.read_bytes()))
        except BadHead as error:
            found.append(BadHead(f"{path.name}: {error}"))
    return found


def read_document(text: bytes) -> HeadDocument:
    """Parse a document. Raises BadHead if it is invalid or has content that was not signed."""
    with suppress(msgspec.MsgspecError):
        found = msgspec.json.decode(text, type=HeadDocument)
        if msgspec.json.decode(text) == msgspec.json.decode(written_document(found)):
            return found
    raise BadHead(
        "The file is not a head of an audit. Pass a file with the output of elicit audit head."
    )


def _must_be_signed(signed: SignedHead, keys: Sequence[bytes]) -> None:
    """Verify the signature of a head with one of these keys. Raises BadHead."""
    if signed.key not in keys:
        raise BadHead("The head was signed with another key. Pass that key with --key.")
    try:
        Ed25519PublicKey.from_public_bytes(signed.key).verify(
            signed.signature, _encode(replace(signed, signature=b""))
        )
    except (InvalidSignature, ValueError):
        raise BadHead("The head was changed after it was signed. Use another copy of it.") from None


def _must_have_its_list(document: HeadDocument) -> None:
    if _digest(document.chains) != document.elicit_audit_head.digest:
        raise BadHead("The list of the head was changed after it was signed. Use another copy.")


def _digest(chains: Sequence[OwnersHead]) -> bytes:
    digest = hashlib.sha256()
    for each in chains:
        digest.update(_encode(each))
    return digest.digest()


def _signed(record: Record) -> SignedHead:
    try:
        return msgspec.msgpack.decode(record.sealed, type=SignedHead)
    except msgspec.MsgspecError:
        raise BadHead("A head of the audit is damaged in the store.") from None


def _decoded_list(record: Record) -> list[OwnersHead]:
    try:
        return msgspec.msgpack.decode(record.sealed, type=list[OwnersHead])
    except msgspec.MsgspecError:
        raise BadHead("The list of a head is damaged in the store.") from None


def _record(kind: str, id: str, *, erase_at: datetime, sealed: bytes) -> Record:
    until = erase_at.astimezone(UTC)
    return plain_record(SERVICE, kind, id, status="made", erase_at=until, sealed=sealed)
