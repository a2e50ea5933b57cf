"""Webhook signatures: our code accepts the vendors' signatures, and their libraries accept ours."""

import base64
import hashlib
import hmac
import re
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from standardwebhooks import Webhook

from flows.errors import Unverified
from flows.payments.mollie.gateway import MOLLIE
from flows.payments.stripe.gateway import STRIPE
from flows.providers.github import GITHUB
from flows.webhooks.signatures import (
    BODY_BYTES_AT_MOST,
    STANDARD_WEBHOOKS,
    Delivery,
    Scheme,
    sign,
    verify,
)
from tests.support import signing
from tests.support.clock import NOON, Clock
from tests.support.signers import COINBASE, LEMON_SQUEEZY, PADDLE, SIGNERS, SQUARE, URL
from tests.support.signing import Headers

BODY = b'{"id":"evt_1","type":"checkout.session.completed"}'
STRIPE_SECRET = "whsec_5tripe5tripe5tripe5tripe5tripe55"
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
GITHUB_SECRET = "It's a Secret to Everybody"
PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = "whpk_" + base64.b64encode(PRIVATE.public_key().public_bytes_raw()).decode()

SECRETS = {
    STRIPE: STRIPE_SECRET,
    STANDARD_WEBHOOKS: STANDARD_SECRET,
    GITHUB: GITHUB_SECRET,
    PADDLE: "pdl_ntfset_secret",
    SQUARE: "square secret",
    COINBASE: "coinbase secret",
    MOLLIE: "mollie secret",
    LEMON_SQUEEZY: "lemon secret",
}
named = pytest.mark.parametrize("scheme", SECRETS, ids=lambda scheme: scheme.name)


def signed(scheme: Scheme, body: bytes = BODY) -> Headers:
    return SIGNERS[scheme](body, SECRETS[scheme], NOON)


def received(
    scheme: Scheme,
    headers: list[tuple[str, str]],
    *secrets: str,
    body: bytes = BODY,
    now: datetime = NOON,
) -> Delivery:
    secrets = secrets or (SECRETS[scheme],)
    return verify(scheme, body=body, headers=headers, secrets=secrets, now=now, url=URL)


def sha256(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()


# The vendors' own libraries


def test_secret_without_prefix_or_padding_is_read_like_vendor_library() -> None:
    now = datetime.now(UTC)
    for secret in ("c2VjcmV0IHNlY3JldCBzZWNyZXQ", "whsec_c2VjcmV0IHNlY3JldCBzZWNyZXQ"):
        headers = [
            ("webhook-id", "msg_1"),
            ("webhook-timestamp", str(int(now.timestamp()))),
            ("webhook-signature", Webhook(secret).sign("msg_1", now, BODY.decode())),
        ]
        assert received(STANDARD_WEBHOOKS, headers, secret, now=now).id == "msg_1"


def test_our_signature_is_accepted_by_us_and_vendor_library() -> None:
    now, other = datetime.now(UTC), "whsec_c2VjcmV0IHNlY3JldCBzZWNyZXQgYWdhaW4="
    headers = sign(
        STANDARD_WEBHOOKS, body=BODY, id="msg_1", secrets=[STANDARD_SECRET, other], now=now
    )
    for secret in (STANDARD_SECRET, other):
        assert received(STANDARD_WEBHOOKS, headers, secret, now=now).id == "msg_1"
        assert Webhook(secret).verify(BODY, dict(headers))["id"] == "evt_1"


@pytest.mark.parametrize(
    ("scheme", "secret"),
    [(STRIPE, STRIPE_SECRET), (STANDARD_WEBHOOKS, PUBLIC), (STANDARD_WEBHOOKS, "whsec_")],
)
def test_signing_with_unsupported_scheme_or_secret_is_refused(scheme: Scheme, secret: str) -> None:
    with pytest.raises(ValueError):
        sign(scheme, body=BODY, id="msg_1", secrets=[secret], now=NOON)


# Published examples


@pytest.mark.parametrize("family", ["webhook-", "svix-", "Webhook-", "SVIX-"])
@pytest.mark.parametrize(
    "signature",
    [
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        "v1,bm9wZQ== v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= v2,bm9wZQ==",
    ],
)
def test_published_standard_webhooks_example_is_accepted(family: str, signature: str) -> None:
    headers = [
        (family + "id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
        (family + "timestamp", "1614265330"),
        (family + "signature", signature),
    ]
    body = b'{"test": 2432232314}'
    then = datetime.fromtimestamp(1614265330, UTC)
    delivery = received(STANDARD_WEBHOOKS, headers, STANDARD_SECRET, body=body, now=then)
    assert (delivery.id, delivery.sent_at) == ("msg_p5jXN8AQM9LWM0D4loKWxJek", then)


def test_published_ed25519_example_is_accepted() -> None:
    signature = (
        "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM"
        "+m7TBAg=="
    )
    headers = [
        ("svix-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
        ("svix-timestamp", "1614265330"),
        ("svix-signature", signature),
    ]
    public = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
    then = datetime.fromtimestamp(1614265330, UTC)
    body = b'{"test": 2432232314}'
    assert received(STANDARD_WEBHOOKS, headers, public, body=body, now=then).body == body


def test_documented_github_example_is_accepted() -> None:
    body = b"Hello, World!"
    headers = [
        (
            "X-Hub-Signature-256",
            "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
        ),
        ("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958"),
    ]
    delivery = received(GITHUB, headers, GITHUB_SECRET, body=body)
    assert (delivery.body, delivery.sent_at) == (body, None)
    assert signing.github(body, secret=GITHUB_SECRET) == headers[:1]


def test_unsigned_id_is_not_in_delivery() -> None:
    headers = [*signed(GITHUB), ("X-GitHub-Delivery", "made up")]
    assert received(GITHUB, headers).id is None


# The other senders


def test_paddle_signature_is_verified() -> None:
    mac = sha256(b"pdl_ntfset_secret", b"%d:%b" % (NOON.timestamp(), BODY)).hex()
    value = f"ts={int(NOON.timestamp())};h1={mac}"
    assert signed(PADDLE) == [("Paddle-Signature", value)]
    assert received(PADDLE, [("Paddle-Signature", value)]).sent_at == NOON


def test_square_signature_of_configured_url_is_verified() -> None:
    mac = base64.b64encode(sha256(b"square secret", URL.encode() + BODY)).decode()
    headers = [("X-Square-HmacSha256-Signature", mac)]
    assert received(SQUARE, headers).body == BODY
    for url in ("https://evil.example/webhooks/square", URL + "/"):
        with pytest.raises(Unverified):
            verify(SQUARE, body=BODY, headers=headers, secrets=["square secret"], now=NOON, url=url)


def test_square_delivery_without_configured_url_is_refused() -> None:
    with pytest.raises(Unverified) as refused:
        verify(SQUARE, body=BODY, headers=signed(SQUARE), secrets=["square secret"], now=NOON)
    assert refused.value.reason == "no_url"


@pytest.mark.parametrize(
    ("scheme", "header", "label"),
    [
        (COINBASE, "X-CC-Webhook-Signature", ""),
        (MOLLIE, "X-Mollie-Signature", "sha256="),
        (LEMON_SQUEEZY, "X-Signature", ""),
    ],
)
def test_signature_of_body_alone_is_verified(scheme: Scheme, header: str, label: str) -> None:
    mac = sha256(SECRETS[scheme].encode(), BODY).hex()
    assert received(scheme, [(header, label + mac)]).body == BODY


def test_repeated_signature_header_during_key_rotation_is_accepted() -> None:
    new, old = (sha256(key, BODY).hex() for key in (b"new", b"old"))
    headers = [("X-Mollie-Signature", f"sha256={new}"), ("X-Mollie-Signature", f"sha256={old}")]
    assert received(MOLLIE, headers, "old").body == BODY
    assert received(MOLLIE, headers, "new").body == BODY
    with pytest.raises(Unverified):
        received(MOLLIE, headers, "other")
    for joined in (f"sha256={new},sha256={old}", f"sha256={new} ,\tsha256={old}"):
        for secret in ("new", "old"):
            assert received(MOLLIE, [("x-mollie-signature", joined)], secret).body == BODY


@pytest.mark.parametrize("message", ["", "{ts}", "{body}{body}", "{body}{x}", "{body}{}"])
def test_a_scheme_signs_the_body_once_and_nothing_unknown(message: str) -> None:
    with pytest.raises(ValueError, match=r"must contain \{body\} once"):
        Scheme(name="loose", signature_header="x-mac", time_header="x-time", message=message)


@pytest.mark.parametrize(
    "fields",
    [
        {"id_header": "x-id"},
        {"time_header": "x-time"},
        {"time_label": "t="},
        {"message": "{id}.{body}"},
        {"message": "{ts}.{body}"},
    ],
)
def test_scheme_with_unsigned_time_or_id_is_invalid(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="otherwise it must not contain them"):
        Scheme(name="loose", signature_header="x-mac", **fields)  # type: ignore[arg-type]


# Every scheme


@named
@settings(deadline=None)
@given(body=st.binary(max_size=300))
def test_verified_body_is_unchanged(scheme: Scheme, body: bytes) -> None:
    assert received(scheme, signed(scheme, body), body=body).body == body


@named
def test_binary_and_empty_bodies_are_accepted(scheme: Scheme) -> None:
    for body in (b"", b"\xff\xfe\x00", bytes(range(256)), b"{body}{ts}{id}{url}{0}%s"):
        assert received(scheme, signed(scheme, body), body=body).body == body


@named
def test_largest_body_is_accepted(scheme: Scheme) -> None:
    body = bytes(BODY_BYTES_AT_MOST)
    assert received(scheme, signed(scheme, body), body=body).body == body


@named
def test_header_names_are_case_insensitive(scheme: Scheme) -> None:
    for write in (str.lower, str.upper, str.title):
        headers = [(write(name), value) for name, value in signed(scheme)]
        assert received(scheme, [("Host", "x"), *headers, ("host", "y")]).body == BODY


@named
def test_old_and_new_secret_are_accepted_during_rotation(scheme: Scheme) -> None:
    other = "c2VjcmV0IHNlY3JldCBzZWNyZXQ=" if scheme.key == "base64" else "c0ffee00"
    for secrets in ((other, SECRETS[scheme]), (SECRETS[scheme], other)):
        assert received(scheme, signed(scheme), *secrets).body == BODY
    with pytest.raises(Unverified) as refused:
        received(scheme, signed(scheme), other)
    assert refused.value.reason == "bad_signature"


@pytest.mark.parametrize("scheme", [STRIPE, STANDARD_WEBHOOKS], ids=lambda scheme: scheme.name)
def test_one_valid_signature_among_several_is_enough(scheme: Scheme) -> None:
    *before, (name, value) = signed(scheme)
    assert scheme.separator
    good = value.split(scheme.separator)
    bad = scheme.signature_label + "bm9wZQ=="
    for parts in ([*good, bad], [bad, *good], ["v0=other", *good, "", "v9,other"]):
        headers = [*before, (name, scheme.separator.join(parts))]
        assert received(scheme, headers).body == BODY


@pytest.mark.parametrize(
    ("scheme", "minutes"), [(STRIPE, 5), (STANDARD_WEBHOOKS, 5), (replace(STRIPE, name="x"), 5)]
)
def test_delivery_is_accepted_within_five_minutes(scheme: Scheme, minutes: int) -> None:
    is_standard = scheme is STANDARD_WEBHOOKS
    secret = STANDARD_SECRET if is_standard else STRIPE_SECRET
    headers = signed(STANDARD_WEBHOOKS if is_standard else STRIPE)
    late, early = Clock().tick(minutes=minutes), Clock().tick(minutes=-minutes)
    for now in (late, NOON, early):
        assert received(scheme, headers, secret, now=now).sent_at == NOON
    for now, reason in (
        (late + timedelta(microseconds=1), "too_old"),
        (early - timedelta(microseconds=1), "too_new"),
    ):
        with pytest.raises(Unverified) as refused:
            received(scheme, headers, secret, now=now)
        assert refused.value.reason == reason


# ed25519


def privately(
    body: bytes = BODY, *, id: str = "msg_1", family: str = "webhook-"
) -> list[tuple[str, str]]:
    time = str(int(NOON.timestamp()))
    signature = base64.b64encode(PRIVATE.sign(f"{id}.{time}.".encode() + body)).decode()
    return [
        (family + "id", id),
        (family + "timestamp", time),
        (family + "signature", f"v1a,{signature}"),
    ]


@settings(deadline=None)
@given(body=st.binary(max_size=300))
def test_private_key_signature_is_accepted(body: bytes) -> None:
    delivery = received(STANDARD_WEBHOOKS, privately(body), PUBLIC, body=body)
    assert (delivery.id, delivery.body, delivery.sent_at) == ("msg_1", body, NOON)


def test_public_key_and_shared_secret_can_be_configured_together() -> None:
    secrets = (PUBLIC, STANDARD_SECRET)
    assert received(STANDARD_WEBHOOKS, privately(), *secrets).id == "msg_1"
    assert received(STANDARD_WEBHOOKS, signed(STANDARD_WEBHOOKS), *secrets).id == "msg_1"
    *before, (name, private) = privately()
    both = f"{dict(signed(STANDARD_WEBHOOKS))['webhook-signature']} {private}"
    for secret in secrets:
        assert received(STANDARD_WEBHOOKS, [*before, (name, both)], secret).id == "msg_1"
    retired = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
    rolling = (PUBLIC, "whpk_" + base64.b64encode(retired).decode())
    for public in (rolling, rolling[::-1]):
        assert received(STANDARD_WEBHOOKS, privately(), *public).id == "msg_1"


# The result of verification


def test_delivery_can_only_be_created_by_verification() -> None:
    with pytest.raises(TypeError, match=r"only verify\(\) can create"):
        Delivery(scheme="stripe", id=None, body=BODY, sent_at=NOON, proof=object())
    with pytest.raises(TypeError):
        Delivery(scheme="stripe", id=None, body=BODY, sent_at=NOON)  # type: ignore[call-arg]
    delivery = received(STRIPE, signed(STRIPE))
    with pytest.raises((TypeError, ValueError)):
        replace(delivery, body=b"another")  # type: ignore[call-arg]
    with pytest.raises(FrozenInstanceError):
        delivery.body = b"another"  # type: ignore[misc]


def test_only_verifying_modules_use_the_proof() -> None:
    project = Path(__file__).parents[3]
    paths = [path for name in ("flows", "webapp") for path in (project / name).rglob("*.py")]
    proving = [path.name for path in paths if re.search(r"\bPROOF\b", path.read_text("utf-8"))]
    assert sorted(proving) == ["certificates.py", "signatures.py"]


def test_repr_of_delivery_hides_body() -> None:
    delivery = received(STANDARD_WEBHOOKS, signed(STANDARD_WEBHOOKS))
    assert repr(delivery) == f"Delivery('standard-webhooks', id='msg_1', {len(BODY)} bytes)"
    assert "evt_1" not in f"{delivery} {delivery!r}"
