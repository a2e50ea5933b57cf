"""Masking of typed secrets in other texts, also where the secret is quoted or truncated."""

import json
import logging
import sys
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from webapp.logs.events import mask_addresses
from webapp.logs.masking import HIDDEN_AT_LEAST, mask, masked, masked_in_short

LONG = "Kx7-Qp2_Zt9!Vb4?Wn6+Ls1=Rd3~Hf5.Jg8/Mc0,Ty8;Ua6:Ei4%Ob2&Sw7*Dv9#Fk1-Gm3"


def error_of(kind: Any, given: object) -> str:
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(kind).validate_python(given)
    return str(raised.value)


class Account(BaseModel):
    user: int
    key: int


def pieces(secret: str, *, size: int = 8) -> list[str]:
    return [secret[at : at + size] for at in range(len(secret) - size + 1)]


def test_truncated_long_secret_is_masked() -> None:
    # finding: S3
    for text in (
        error_of(int, LONG),
        error_of(Account, {"user": LONG, "key": LONG}),
        error_of(Account, {"user": 1, "key": LONG}),
        error_of(int, [LONG]),
        f"The key {LONG[:11]}... does not fit",
        f"no such key: …{LONG[-5:]}",
    ):
        assert any(piece in text for piece in (LONG[:8], LONG[-5:]))
        cleared = mask(text, {LONG})
        assert not [piece for piece in pieces(LONG, size=4) if piece in cleared]


@pytest.mark.parametrize("spell", [repr, json.dumps, quote, str], ids=lambda each: each.__name__)
def test_quoted_secret_is_masked(spell: object) -> None:
    secret = "it's \"\\ and\nthe next line\té"
    assert callable(spell)
    assert "next" not in mask(f"Refused: {spell(secret)}", {secret})


def test_secrets_in_numbers_and_keys_are_masked_but_not_words_of_the_protocol() -> None:
    result = {
        "content": [{"type": "text", "text": "no text 482913"}],
        "structuredContent": {"pin": 482913, "at 482913": [True, None, 1.5]},
        "isError": True,
    }
    assert masked(result, {"482913", "text", "content"}) == {
        "content": [{"type": "text", "text": "no *** ***"}],
        "structuredContent": {"pin": "***", "at ***": [True, None, 1.5]},
        "isError": True,
    }


def test_only_known_words_under_protocol_keys_are_not_masked() -> None:
    # finding: S3
    data = {"type": f"https://api.example/{LONG}", "role": {"deep": [LONG]}, "mimeType": LONG}
    assert LONG not in json.dumps(masked({"data": data, "audience": ["user", LONG]}, [LONG]))
    words = {"type": "text", "audience": ["user"], "mimeType": "text/plain", "role": "assistant"}
    assert masked(words, ["text", "user", "text/plain", "assistant"]) == words


@given(st.text(max_size=40), st.text(min_size=HIDDEN_AT_LEAST, max_size=40), st.text(max_size=40))
def test_masked_text_contains_no_secret(before: str, secret: str, after: str) -> None:
    cleared = mask(f"{before}{secret}{after}", {secret})
    assert secret not in cleared or secret in "***" * 3


def test_words_with_same_beginning_as_secret_are_not_masked() -> None:
    assert mask("open the door, opening", {"open sesame"}) == "open the door, opening"
    assert mask("the sun ...", {"the sunrise"}) == "the sun ..."


def test_long_text_of_repeated_character_is_masked_quickly() -> None:
    assert mask("a" * 200_000, {"a" * 60_000}).count("a") < 8


def steps(text: str, secret: str) -> int:
    """Return the number of function calls that masking makes, including Python's own."""
    counted = 0

    def count(*_: object) -> None:
        nonlocal counted
        counted += 1

    sys.setprofile(count)
    try:
        mask(text, {secret})
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("begun", [LONG[:4], LONG[:7], f"{LONG[:3]}...", LONG[-6:]])
def test_text_full_of_partial_matches_is_masked_without_extra_steps(begun: str) -> None:
    # finding: S30
    mask(begun, {LONG})  # the patterns are cached
    assert steps(begun * 10_000, LONG) <= steps(begun * 10, LONG) + 10


@pytest.mark.parametrize("other", ["x", LONG, f"{LONG} "], ids=["plain", "full", "spaced"])
def test_truncated_text_contains_no_piece_of_secret_at_cut(other: str) -> None:
    # finding: S30
    for before in range(150):
        text = f"{'y' * before}{LONG}{other * 2000}{LONG}{'z' * before}"
        cut = masked_in_short(text, {LONG}, at_most=100)
        assert len(cut) <= 100 + len(f" [{len(text)} more characters] ")
        assert not [piece for piece in pieces(LONG, size=4) if piece in cut]


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("/e/a-token.of-ours", "/e/***"),
        ("/tools/e/a-token.of-ours/live", "/tools/e/***/live"),
        ("/pair/a-token", "/pair/***"),
        ("/callback/github?code=4711&state=4712", "/callback/github***"),
        ("/callback/github/?code=4711&state=4712", "/callback/github/***"),
        ("/signin/callback?code=4711", "/signin/callback***"),
        ("/return?elicitation=a-token", "/return***"),
        (f"/mine?elicitation={'t' * 60}.{'s' * 43}&x=1", "/mine?elicitation=***&x=1"),
        ("/connections", "/connections"),
        ("/mine?page=2", "/mine?page=2"),
    ],
)
def test_access_log_of_host_contains_no_token(address: str, written: str) -> None:
    args = ("127.0.0.1:1", "GET", address, "1.1", 200)
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 1, "%s %s %s %s %d", args, None)
    assert mask_addresses(record)
    assert record.args == ("127.0.0.1:1", "GET", written, "1.1", 200)
    # hypercorn and granian each use their own names for the logged values.
    named = {"m": "GET", "U": address, "s": 200}
    record = logging.LogRecord(
        "granian.access", logging.INFO, "", 1, '"%(m)s %(U)s" %(s)d', (named,), None
    )
    assert mask_addresses(record)
    assert record.getMessage() == f'"GET {written}" 200'
