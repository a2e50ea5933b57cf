"""Tokens as an attacker sends them: only an unchanged token of this server is accepted."""

import base64
from datetime import timedelta
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.crypto.tokens import MAXIMUM_LIFE, MAXIMUM_TEXT_BYTES, Claims, Purpose, Ring, Tokens
from flows.errors import InvalidToken
from tests.support.clock import NOON, Clock
from tests.support.work import bytes_of, steps_of

OLD = b"an old secret, thirty-two bytes!"
NEW = b"a new secret of thirty-two bytes"
ORIGIN = "https://elicit.example"
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
CLAIMS = Claims(
    purpose=Purpose.LINK,
    id="ownertag-and-the-id-of-a-record",
    expires_at=NOON + timedelta(minutes=5),
    attempt=3,
    rest="what-else-it-says",
)


@cache
def tokens(*secrets: bytes, origin: str = ORIGIN) -> Tokens:
    return Tokens(Ring(secrets or (OLD,)), origin=origin)


def minted(claims: Claims = CLAIMS) -> str:
    return tokens().mint(claims, now=NOON)


TOKEN = minted()


def refusal(text: str, *, purpose: Purpose = Purpose.LINK) -> str:
    with pytest.raises(InvalidToken) as refused:
        tokens().read(text, purpose=purpose, now=NOON)
    return refused.value.reason


def is_the_same_or_nothing(text: str) -> bool:
    """Return True if a re-encoded token has the original claims or is refused."""
    try:
        return tokens().read(text, purpose=Purpose.LINK, now=NOON) == CLAIMS
    except InvalidToken:
        return True


def flipped_tail(text: str) -> list[str]:
    """Return base64 texts that differ only in the last character."""
    return [text[:-1] + other for other in ALPHABET if other != text[-1]]


def test_minted_token_can_be_read():
    assert tokens().read(TOKEN, purpose=Purpose.LINK, now=NOON) == CLAIMS


@pytest.mark.parametrize("purpose", Purpose)
def test_token_for_one_purpose_is_refused_for_every_other(purpose: Purpose):
    claims = Claims(purpose=purpose, id="x", expires_at=CLAIMS.expires_at)
    text = minted(claims)
    assert tokens().read(text, purpose=purpose, now=NOON) == claims
    for other in set(Purpose) - {purpose}:
        assert refusal(text, purpose=other) == "forged"


def test_truncated_token_is_refused():
    for length in range(len(TOKEN)):
        refusal(TOKEN[:length])


def test_token_without_its_start_is_refused():
    for start in range(1, len(TOKEN)):
        refusal(TOKEN[start:])


def test_token_with_one_text_bit_flipped_reads_the_same_or_is_refused():
    payload_length = TOKEN.rindex(".")
    for position, character in enumerate(TOKEN):
        for bit in range(8):
            text = TOKEN[:position] + chr(ord(character) ^ 1 << bit) + TOKEN[position + 1 :]
            if position < payload_length:
                refusal(text)
            else:
                assert is_the_same_or_nothing(text)


def test_token_with_one_byte_bit_flipped_is_refused():
    for part in (0, 1):
        texts = TOKEN.split(".")
        data = bytearray(base64.urlsafe_b64decode(texts[part] + "=="))
        for index in range(len(data) * 8):
            data[index // 8] ^= 1 << index % 8
            texts[part] = base64.urlsafe_b64encode(data).rstrip(b"=").decode()
            refusal(".".join(texts))
            data[index // 8] ^= 1 << index % 8


def test_parts_of_two_tokens_do_not_form_a_valid_token():
    body, signature = TOKEN.split(".")
    other_body, other_signature = minted().split(".")
    assert refusal(f"{body}.{other_signature}") == "forged"
    assert refusal(f"{other_body}.{signature}") == "forged"


@pytest.mark.parametrize("padding", ["=", "==", "===", "A", "\n", " ", "%3D", "\x00"])
def test_a_padded_payload_is_refused(padding):
    body, signature = TOKEN.split(".")
    refusal(f"{body}{padding}.{signature}")
    refusal(f"{padding}{body}.{signature}")


@pytest.mark.parametrize("padding", ["=", "==", "===", "A", "\n", " ", "%3D", "\x00"])
def test_padded_signature_reads_the_same_or_is_refused(padding):
    assert is_the_same_or_nothing(TOKEN + padding)


def test_other_spelling_of_last_bits_reads_the_same_or_is_refused():
    # With some of these lengths, the last character of the payload contains unused bits.
    for length in range(4):
        text = minted(
            Claims(
                purpose=Purpose.LINK,
                id=CLAIMS.id,
                expires_at=CLAIMS.expires_at,
                attempt=3,
                rest="x" * length,
            )
        )
        body, signature = text.split(".")
        for other in flipped_tail(body):
            refusal(f"{other}.{signature}")
    body, signature = TOKEN.split(".")
    assert all(is_the_same_or_nothing(f"{body}.{other}") for other in flipped_tail(signature))


def test_standard_base64_alphabet_reads_the_same_or_is_refused():
    for _ in range(20):
        body, signature = minted().split(".")
        respelled = body.replace("-", "+").replace("_", "/")
        if respelled != body:
            refusal(f"{respelled}.{signature}")
        other = signature.replace("-", "+").replace("_", "/")
        assert is_the_same_or_nothing(f"{body}.{other}")


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "...", "a", "a.", ".a", "a.b", "é", "\ud800", "\x00", "=" * 100, "." * 2048],
)
def test_malformed_text_is_refused(text):
    refusal(text)
    refusal(f"{text}.{TOKEN}")


@pytest.mark.parametrize("character", ["é", "\u0410", "\u200b", "\ud800", "\uff0e"])
def test_non_ascii_character_is_refused(character):
    refusal(TOKEN.replace(".", f"{character}."))
    refusal(TOKEN + character)


@pytest.mark.parametrize("character", ["A", "é"])
def test_megabyte_token_is_refused_before_any_work(character):
    # finding: XH10
    long, longer = (character * size + TOKEN for size in (MAXIMUM_TEXT_BYTES, 1 << 20))

    def read(text):
        return lambda: refusal(text)

    assert refusal(longer) == "size"
    assert steps_of(read(longer)) == steps_of(read(long))
    assert bytes_of(read(longer)) < 64 * 1024  # the text is not even copied


def test_token_longer_than_limit_is_refused():
    long = TOKEN.rjust(MAXIMUM_TEXT_BYTES + 1, "A")
    assert refusal(long) == "size"
    assert refusal(long[1:]) != "size"


def test_token_is_valid_until_its_last_millisecond():
    clock = Clock(CLAIMS.expires_at - timedelta(milliseconds=1))
    assert tokens().read(TOKEN, purpose=Purpose.LINK, now=clock()) == CLAIMS
    clock.tick(milliseconds=1)
    with pytest.raises(InvalidToken) as refused:
        tokens().read(TOKEN, purpose=Purpose.LINK, now=clock())
    assert refused.value.reason == "expired"


@pytest.mark.parametrize("days", [1, 31, 32, 33, 34, 365, 10_000])
def test_long_expired_token_is_refused(days):
    with pytest.raises(InvalidToken):
        tokens().read(TOKEN, purpose=Purpose.LINK, now=NOON + timedelta(days=days))


def test_token_with_maximum_lifetime_is_valid_on_its_last_day():
    claims = Claims(purpose=Purpose.RUN, id="x", expires_at=NOON + MAXIMUM_LIFE)
    text = minted(claims)
    last = NOON + MAXIMUM_LIFE - timedelta(milliseconds=1)
    assert tokens().read(text, purpose=Purpose.RUN, now=last) == claims


def test_minting_token_beyond_maximum_lifetime_is_refused():
    with pytest.raises(ValueError, match="31 days"):
        minted(
            Claims(
                purpose=Purpose.RUN,
                id="x",
                expires_at=NOON + MAXIMUM_LIFE + timedelta(seconds=1),
            )
        )


def test_token_minted_in_the_future_is_refused():
    for days in (2, 30, 3000):
        later = NOON + timedelta(days=days)
        claims = Claims(purpose=Purpose.LINK, id="x", expires_at=later + timedelta(minutes=5))
        assert refusal(tokens().mint(claims, now=later)) == "malformed"


def test_clock_one_hour_behind_still_reads_token():
    late = Clock().tick(hours=11, minutes=59)
    claims = Claims(purpose=Purpose.LINK, id="x", expires_at=late + timedelta(minutes=5))
    text = tokens().mint(claims, now=late)
    before = late - timedelta(hours=1)
    assert tokens().read(text, purpose=Purpose.LINK, now=before) == claims


@pytest.mark.parametrize(
    "origin",
    [
        "https://elicit.example:8443",
        "http://elicit.example",
        "https://elicit.example.evil",
        "https://ELICIT.example",
        "",
    ],
)
def test_token_of_another_origin_is_refused(origin):
    text = tokens(origin=origin).mint(CLAIMS, now=NOON)
    assert refusal(text) == "origin"


def test_token_signed_with_unknown_key_is_refused():
    assert refusal(tokens(NEW).mint(CLAIMS, now=NOON)) == "unknown key"


def test_token_naming_our_key_but_signed_with_another_is_refused():
    foreign, own = tokens(NEW).mint(CLAIMS, now=NOON), TOKEN
    body, signature = foreign.split(".")
    mine = base64.urlsafe_b64decode(own.split(".")[0] + "==")
    data = bytearray(base64.urlsafe_b64decode(body + "=="))
    data[:7] = mine[:7]
    forged = base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    assert refusal(f"{forged}.{signature}") == "forged"


def test_token_of_old_key_is_valid_until_key_is_removed():
    rotated = tokens(NEW, OLD)
    assert rotated.read(TOKEN, purpose=Purpose.LINK, now=NOON) == CLAIMS
    fresh = rotated.mint(CLAIMS, now=NOON)
    assert refusal(fresh) == "unknown key"
    with pytest.raises(InvalidToken):
        tokens(NEW).read(TOKEN, purpose=Purpose.LINK, now=NOON)


def test_claims_are_not_readable_in_token():
    blob = base64.urlsafe_b64decode(TOKEN.split(".")[0] + "==")
    for claim in (CLAIMS.id, CLAIMS.rest, ORIGIN, "link", "ownertag"):
        assert claim not in TOKEN
        assert claim.encode() not in blob


def test_same_claims_never_produce_same_token():
    assert len({minted() for _ in range(100)}) == 100


def test_token_contains_only_path_safe_characters():
    assert set(TOKEN) <= set(ALPHABET + ".")
    assert 100 <= len(TOKEN) <= 300


def test_reason_is_not_sent_to_sender():
    for text in ("", TOKEN[:-10], minted(), "A" * 3000):
        with pytest.raises(InvalidToken) as refused:
            tokens().read(text, purpose=Purpose.STATE, now=NOON)
        assert refused.value.reason not in str(refused.value)


def test_repr_of_tokens_shows_no_secret():
    ring = Ring([OLD])
    assert OLD.decode() not in repr(ring) + repr(tokens()) + str(ring)


@pytest.mark.parametrize("days", [0, 31, 2000, 40_000])
@settings(deadline=None)
@given(text=st.text(alphabet=ALPHABET + ".=+/ é", max_size=300) | st.text(max_size=60))
def test_random_text_raises_only_invalid_token(days, text):
    with pytest.raises(InvalidToken):
        tokens().read(text, purpose=Purpose.LINK, now=NOON + timedelta(days=days))


@settings(deadline=None)
@given(blob=st.binary(max_size=200), signature=st.binary(max_size=40), has_our_head=st.booleans())
def test_random_bytes_with_wrong_signature_raise_only_invalid_token(blob, signature, has_our_head):
    head = base64.urlsafe_b64decode(TOKEN.split(".")[0] + "==")[:7] if has_our_head else b""
    body = base64.urlsafe_b64encode(head + blob).rstrip(b"=").decode()
    refusal(f"{body}.{base64.urlsafe_b64encode(signature).decode()}")
