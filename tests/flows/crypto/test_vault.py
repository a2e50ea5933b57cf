"""The keyring: the newest secret wraps, every secret unwraps, and each purpose has its own key."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.crypto.tokens import Ring
from flows.errors import Unreadable, WeakSecret

OLD = b"an old secret, thirty-two bytes!"
NEW = b"a new secret of thirty-two bytes"
KEY = bytes(range(32))


@pytest.mark.parametrize("size", [0, 1, 16, 31])
def test_short_secret_error_names_the_keys_new_command(size: int) -> None:
    with pytest.raises(WeakSecret, match="elicit keys new") as refused:
        Ring([OLD, b"s" * size])
    assert "sss" not in str(refused.value)


def test_empty_keyring_is_refused() -> None:
    with pytest.raises(WeakSecret, match="elicit keys new"):
        Ring([])


def test_newest_secret_wraps_and_every_secret_unwraps() -> None:
    before = Ring([OLD]).wrap("o", KEY)
    rotated = Ring([NEW, OLD])
    assert rotated.unwrap("o", before) == KEY
    after = rotated.wrap("o", KEY)
    assert Ring([NEW]).unwrap("o", after) == KEY
    with pytest.raises(Unreadable):
        Ring([OLD]).unwrap("o", after)
    with pytest.raises(Unreadable):
        Ring([NEW]).unwrap("o", before)


def test_wrapped_key_opens_only_for_its_owner() -> None:
    ring = Ring([OLD])
    with pytest.raises(Unreadable):
        ring.unwrap("p", ring.wrap("o", KEY))


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_random_bytes_raise_only_unreadable(data: bytes) -> None:
    ring = Ring([OLD])
    for wrapped in (data, ring.newest + data):
        with pytest.raises(Unreadable):
            ring.unwrap("o", wrapped)


def test_each_use_has_its_own_key() -> None:
    ring = Ring([NEW, OLD])
    infos = ["sign link 1", "seal link 1", "sign link 2", "wrap o", "csrf"]
    keys = [ring.derive(fingerprint, info) for fingerprint in ring.fingerprints for info in infos]
    assert len(set(keys)) == len(keys)
    with pytest.raises(KeyError):
        ring.derive(b"none", "csrf")
