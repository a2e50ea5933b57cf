"""Published examples of vendors are accepted by the schemes that examples/payments declares."""

from datetime import UTC, datetime

import pytest

from flows.webhooks.signatures import verify
from tests.support.clock import NOON
from tests.support.signers import PADDLE, SQUARE

# Paddle


def test_published_paddle_example_is_accepted_during_secret_rotation() -> None:
    then = datetime.fromtimestamp(1696195954, UTC)
    value = (
        "ts=1696195954;h1=dummy;h1=d96299976a6eb066f484d7fde011ac56fc32b38fc9940bc419d6e537fdc6ef02"
    )
    endpoint = "pdl_ntf_01hbpjmytsa32fhr36nqgc3kgb_"
    retired, current = (
        endpoint + "TjIG2BXbm83HPXqNfziwe506sBEdqL/4",
        endpoint + "WvRO0eL4Bj9rgYYIBZY6wZhG4EHy9jzh",
    )
    delivery = verify(
        PADDLE,
        body=b"hello-world",
        headers=[("Paddle-Signature", value)],
        secrets=[retired, current],
        now=then,
    )
    assert (delivery.body, delivery.sent_at) == (b"hello-world", then)


# Square


@pytest.mark.parametrize(
    ("body", "signature"),
    [
        (
            b'{"data":{"type":"webhooks","id":"fake_id"}}',
            "W3FlCNk5IA3ZQ2LHTWoajvzfaDu/OwY2tNHIHC3IUOA=",
        ),
        (
            b'{"data":{"type":"webhooks","id":">id<"}}',
            "Cxt7+aTi4rKgcA0bC4g9EHdVtLSDWdqccmL5MvihU4U=",
        ),
    ],
)
def test_published_square_examples_are_accepted(body: bytes, signature: str) -> None:
    delivery = verify(
        SQUARE,
        body=body,
        headers=[("X-Square-HmacSha256-Signature", signature)],
        secrets=["signature-key"],
        now=NOON,
        url="https://webhook.site/webhooks",
    )
    assert delivery.body == body
