"""Sealing: sealed data can be opened in its own row with its own key, and nowhere else."""

import pytest

from flows.crypto.tokens import Ring
from flows.errors import Unreadable
from webapp.records.ids import Pepper
from webapp.records.owners import Locker, Row

OLD = b"an old secret, thirty-two bytes!"
NEW = b"a new secret of thirty-two bytes"
KEY = bytes(range(32))
ROW = Row(owner="o", kind="elicitation", id="o-1", version=3)


def row(*, owner: str = "o", kind: str = "elicitation", id: str = "o-1", version: int = 3) -> Row:
    return Row(owner=owner, kind=kind, id=id, version=version)


def test_sealed_text_is_decrypted_with_the_same_key_and_row() -> None:
    locker = Locker(KEY)
    assert locker.open(ROW, locker.seal(ROW, b"plain")) == b"plain"
    assert Locker(KEY).open(ROW, locker.seal(ROW, b"")) == b""


@pytest.mark.parametrize(
    "other",
    [
        row(owner="p"),
        row(kind="run"),
        row(id="o-2"),
        row(version=2),
        row(version=4),
        row(version=30),
        row(owner="", id="oo-1"),
    ],
)
def test_text_moved_to_other_row_does_not_open(other: Row) -> None:
    locker = Locker(KEY)
    with pytest.raises(Unreadable):
        locker.open(other, locker.seal(ROW, b"plain"))


def test_key_of_other_owner_does_not_open_text() -> None:
    # parity: F15
    with pytest.raises(Unreadable):
        Locker(bytes(32)).open(ROW, Locker(KEY).seal(ROW, b"plain"))


def test_every_bit_and_length_is_authenticated() -> None:
    locker = Locker(KEY)
    sealed = locker.seal(ROW, b"plain")
    for bit in range(len(sealed) * 8):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Unreadable):
            locker.open(ROW, bytes(changed))
    for length in range(len(sealed)):
        with pytest.raises(Unreadable):
            locker.open(ROW, sealed[:length])
    with pytest.raises(Unreadable):
        locker.open(ROW, sealed + b"\0")


def test_same_text_is_never_sealed_to_same_bytes() -> None:
    locker = Locker(KEY)
    assert len({locker.seal(ROW, b"plain") for _ in range(2000)}) == 2000


def test_sealed_text_has_96_bit_nonce_and_128_bit_tag() -> None:
    # NIST SP 800-38D, 5.2.1.1. With other sizes, existing data could not be opened.
    assert len(Locker(KEY).seal(ROW, b"plain")) == 12 + len(b"plain") + 16


def test_repr_of_ring_and_keys_shows_no_secret() -> None:
    ring = Ring([OLD, NEW])
    printed = "".join(map(repr, (ring, Locker(KEY), Pepper(KEY)))) + str(ring)
    for secret in (OLD, NEW, KEY):
        assert secret.decode("latin-1") not in printed
        assert repr(secret)[2:-1] not in printed
        assert secret.hex() not in printed


def test_tag_depends_on_key_purpose_and_boundaries_of_parts() -> None:
    pepper = Pepper(KEY)
    tags = [
        pepper.tag("owner", "a", "bc"),
        pepper.tag("owner", "ab", "c"),
        pepper.tag("owner", "abc"),
        pepper.tag("owner", "abc", ""),
        pepper.tag("join", "a", "bc"),
        pepper.tag("ownera", "bc"),
        Pepper(bytes(32)).tag("owner", "a", "bc"),
        pepper.tag("owner", "\ud800"),
        pepper.tag("owner", "?"),
    ]
    assert len(set(tags)) == len(tags)
    assert {len(tag) for tag in tags} == {20}
    assert pepper.tag("owner", "a", "bc") == tags[0]
    assert len(pepper.tag("owner", "a", size=18)) == 24
