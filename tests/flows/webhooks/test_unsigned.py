"""Unsigned notices: only an id of the expected form is read from the body."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.errors import Unverified
from flows.payments.mollie.responses import NOTICE_BYTES_AT_MOST, read_id


@pytest.mark.parametrize(
    "body",
    [
        b"id=tr_5B8cwPMGnU6qLbRvo7qEZo",
        b"id=tr%5F5B8cwPMGnU6qLbRvo7qEZo",
        b"id=tr_5B8cwPMGnU6qLbRvo7qEZo&status=paid",
        b"amount=9&id=tr_5B8cwPMGnU6qLbRvo7qEZo",
    ],
)
def test_payment_id_is_read_and_other_fields_are_ignored(body: bytes) -> None:
    assert read_id(body) == "tr_5B8cwPMGnU6qLbRvo7qEZo"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"id",
        b"id=",
        b"ID=tr_1",
        b"id=tr_",
        b"id=ord_1",
        b"id=tr_1/refunds",
        b"id=tr_1%2F..%2Forders",
        b"id=tr_1%0A",
        b"id=tr_1%00",
        b"id=tr_1?x=1",
        b"id= tr_1",
        b"id=tr_%C3%A9",
        b"id=tr_\xc3\xa9",
        b"id=tr_" + b"1" * 65,
        b"id=tr_1&id=tr_1",
        b"id=tr_1&id=tr_2",
        b"id=tr_1;id=tr_2",
        b"id=tr_1" + b"&x=1" * 8,
        b'{"id":"tr_1"}',
        b"\xff\xfe",
    ],
)
def test_malformed_notice_is_refused(body: bytes) -> None:
    with pytest.raises(Unverified) as refused:
        read_id(body)
    assert refused.value.reason == "malformed_body"


def test_too_long_notice_is_refused_before_parsing() -> None:
    tail = b"&x=" + b"1" * (NOTICE_BYTES_AT_MOST - len(b"id=tr_1&x="))
    assert read_id(b"id=tr_1" + tail) == "tr_1"
    with pytest.raises(Unverified) as refused:
        read_id(b"id=tr_1" + tail + b"1")
    assert refused.value.reason == "too_large"


@given(body=st.binary(max_size=60) | st.binary(max_size=60).map(b"id=tr_".__add__))
def test_random_bytes_give_an_id_or_raise_unverified(body: bytes) -> None:
    try:
        id = read_id(body)
    except Unverified:
        return
    assert id.isalnum() is False
    assert id.removeprefix("tr_").isalnum()
    assert id.isascii()
