"""The library's request state: a process that has both secrets can read old and new states."""

import pytest
from mcp.server.request_state import InvalidRequestState

from flows.crypto.tokens import Ring
from webapp.mcp.request_state import Rotating

OLD, NEW = b"o" * 32, b"n" * 32


def test_state_sealed_with_the_old_or_new_secret_opens_after_rotation():
    held = [OLD]
    ring = Ring(held, reread=lambda: held)
    codec = Rotating(lambda: ring.derive_all("request state"))
    before = codec.seal(b"one")
    held.insert(0, NEW)
    after = codec.seal(b"two")
    assert (codec.unseal(before), codec.unseal(after)) == (b"one", b"two")
    late = Rotating(lambda: Ring([OLD]).derive_all("request state"))
    assert late.unseal(before) == b"one"
    with pytest.raises(InvalidRequestState):
        late.unseal(after)
