"""Webhooks as an attacker sends them: only a current delivery signed by its sender counts."""

import base64
import hashlib
import hmac
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.errors import Unverified
from flows.payments.mollie.gateway import MOLLIE
from flows.payments.stripe.account import STRIPE
from flows.providers.github import GITHUB
from flows.webhooks.signatures import (
    BODY_BYTES_AT_MOST,
    HEADER_CHARACTERS_AT_MOST,
    SIGNATURES_AT_MOST,
    STANDARD_WEBHOOKS,
    TOLERANCE,
    Scheme,
    verify,
)
from tests.support import signing
from tests.support.clock import NOON
from tests.support.signers import COINBASE, LEMON_SQUEEZY, PADDLE, SIGNERS, SQUARE, URL
from tests.support.signing import Headers

BODY = b'{"id":"evt_1","paid":true}'
STRIPE_SECRET = "whsec_5tripe5tripe5tripe5tripe5tripe55"
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SECRETS = {
    STRIPE: STRIPE_SECRET,
    STANDARD_WEBHOOKS: STANDARD_SECRET,
    GITHUB: "It's a Secret to Everybody",
    PADDLE: "pdl_ntfset_secret",
    SQUARE: "square secret",
    COINBASE: "coinbase secret",
    MOLLIE: "mollie secret",
    LEMON_SQUEEZY: "lemon secret",
}
SECONDS = int(NOON.timestamp())
PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = "whpk_" + base64.b64encode(PRIVATE.public_key().public_bytes_raw()).decode()
each = pytest.mark.parametrize("scheme", SECRETS, ids=lambda scheme: scheme.name)
each_once = pytest.mark.parametrize(
    "scheme",
    [scheme for scheme in SECRETS if not scheme.is_repeatable],
    ids=lambda scheme: scheme.name,
)
each_labelled = pytest.mark.parametrize(
    "scheme",
    [scheme for scheme in SECRETS if scheme.signature_label],
    ids=lambda scheme: scheme.name,
)
timed = pytest.mark.parametrize(
    "scheme", [STRIPE, STANDARD_WEBHOOKS], ids=lambda scheme: scheme.name
)
each_timed = pytest.mark.parametrize(
    "scheme",
    [scheme for scheme in SECRETS if "{ts}" in scheme.message],
    ids=lambda scheme: scheme.name,
)


def signed(
    scheme: Scheme, body: bytes = BODY, *, secret: str | None = None, now: datetime = NOON
) -> Headers:
    return SIGNERS[scheme](body, secret or SECRETS[scheme], now)


def privately(body: bytes = BODY) -> Headers:
    signature = base64.b64encode(PRIVATE.sign(b"msg_1.%d.%b" % (SECONDS, body))).decode()
    return standard(f"v1a,{signature}")


def standard(signature: str, *, id: str = "msg_1", timestamp: str = str(SECONDS)) -> Headers:
    return [
        ("webhook-id", id),
        ("webhook-timestamp", timestamp),
        ("webhook-signature", signature),
    ]


def refusal(
    scheme: Scheme, headers: Headers, body: bytes = BODY, *, secrets: Sequence[str] | None = None
) -> str:
    with pytest.raises(Unverified) as refused:
        verify(
            scheme,
            body=body,
            headers=headers,
            secrets=[SECRETS[scheme]] if secrets is None else secrets,
            now=NOON,
            url=URL,
        )
    assert str(refused.value) == "The server could not verify this webhook."
    return refused.value.reason


def is_accepted(scheme: Scheme, headers: Headers, *secrets: str, body: bytes = BODY) -> bool:
    delivery = verify(
        scheme,
        body=body,
        headers=headers,
        secrets=secrets or [SECRETS[scheme]],
        now=NOON,
        url=URL,
    )
    return delivery.body == body


def with_one_bit_changed(text: str) -> Iterator[str]:
    for index, character in enumerate(text):
        for bit in range(8):
            yield text[:index] + chr(ord(character) ^ 1 << bit) + text[index + 1 :]


def with_timestamp(scheme: Scheme, timestamp: str) -> Headers:
    """Return headers that the sender itself signed, with a time that no sender uses."""
    key = SECRETS[scheme]
    if scheme is STRIPE:
        message = timestamp.encode() + b"." + BODY
        mac = hmac.digest(key.encode(), message, "sha256").hex()
        return [("Stripe-Signature", f"t={timestamp},v1={mac}")]
    message = b"msg_1." + timestamp.encode() + b"." + BODY
    raw = hmac.digest(base64.b64decode(key.removeprefix("whsec_")), message, "sha256")
    return standard("v1," + base64.b64encode(raw).decode(), timestamp=timestamp)


# Changes in transit


@each
def test_no_bit_of_a_header_can_change(scheme: Scheme):
    headers = signed(scheme)
    for index, (name, value) in enumerate(headers):
        for changed in with_one_bit_changed(value):
            refusal(scheme, [*headers[:index], (name, changed), *headers[index + 1 :]])


def test_no_bit_of_what_a_private_key_signed_can_change():
    headers = privately()
    assert is_accepted(STANDARD_WEBHOOKS, headers, PUBLIC)
    for index, (name, value) in enumerate(headers):
        for changed in with_one_bit_changed(value):
            refusal(
                STANDARD_WEBHOOKS,
                [*headers[:index], (name, changed), *headers[index + 1 :]],
                secrets=[PUBLIC],
            )


@each
def test_no_bit_of_the_body_can_change_nor_its_length(scheme: Scheme):
    headers = signed(scheme)
    for bit in range(len(BODY) * 8):
        changed = bytearray(BODY)
        changed[bit // 8] ^= 1 << bit % 8
        assert refusal(scheme, headers, bytes(changed)) == "bad_signature"
    for body in (b"", BODY[:-1], BODY[1:], BODY + b" ", b"\xef\xbb\xbf" + BODY, BODY * 2):
        assert refusal(scheme, headers, body) == "bad_signature"


def test_no_bit_of_any_of_several_signatures_can_change():
    headers = signing.mollie(BODY, secrets=["another secret", SECRETS[MOLLIE]])
    assert is_accepted(MOLLIE, headers)
    [other, (name, value)] = headers
    for changed in with_one_bit_changed(value):
        assert refusal(MOLLIE, [other, (name, changed)])


@each
def test_no_bit_of_the_secret_can_change(scheme: Scheme):
    raw = SECRETS[scheme].removeprefix(scheme.key_prefix)
    key = base64.b64decode(raw) if scheme.key == "base64" else raw.encode()
    headers = signed(scheme)
    for bit in range(len(key) * 8):
        changed = bytearray(key)
        changed[bit // 8] ^= 1 << bit % 8
        if scheme.key == "base64":
            secret = base64.b64encode(changed).decode()
        elif changed.isascii():
            secret = changed.decode()
        else:
            continue  # the changed bytes cannot be written as a text
        refusal(scheme, headers, secrets=[secret])


@each
def test_a_header_cut_off_anywhere_is_refused(scheme: Scheme):
    *before, (name, value) = signed(scheme)
    for length in range(len(value)):
        refusal(scheme, [*before, (name, value[:length])])
        refusal(scheme, [*before, (name, value[length + 1 :])])


def test_the_end_of_an_id_cannot_be_moved_into_the_body():
    body = b"1234567890.{}"
    [_, _, (_, signature)] = signed(STANDARD_WEBHOOKS, body)
    moved = standard(signature, id=f"msg_1.{SECONDS}", timestamp="1234567890")
    assert refusal(STANDARD_WEBHOOKS, moved, b"{}") == "malformed_header"


def test_the_id_of_one_delivery_cannot_be_put_on_another():
    headers = [("webhook-id", "msg_2"), *signed(STANDARD_WEBHOOKS)[1:]]
    assert refusal(STANDARD_WEBHOOKS, headers) == "bad_signature"


# Replays, and other times


@timed
@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        (-301, "too_old"),
        (-86_400, "too_old"),
        (301, "too_new"),
        (86_400, "too_new"),
        (-SECONDS, "too_old"),
        (99_999_999_999 - SECONDS, "too_new"),
    ],
)
def test_an_authentic_delivery_of_another_time_is_refused(scheme: Scheme, seconds, reason):
    assert refusal(scheme, with_timestamp(scheme, str(SECONDS + seconds))) == reason


@each_timed
def test_a_clock_may_be_wrong_by_the_tolerance_and_by_no_second_more(scheme: Scheme):
    second = timedelta(seconds=1)
    assert is_accepted(scheme, signed(scheme, now=NOON - TOLERANCE))
    assert is_accepted(scheme, signed(scheme, now=NOON + TOLERANCE))
    assert refusal(scheme, signed(scheme, now=NOON - TOLERANCE - second)) == "too_old"
    assert refusal(scheme, signed(scheme, now=NOON + TOLERANCE + second)) == "too_new"


@timed
def test_a_new_time_does_not_fit_an_old_signature(scheme: Scheme):
    old = with_timestamp(scheme, str(SECONDS - 3600))
    fresh = [(name, value.replace(str(SECONDS - 3600), str(SECONDS))) for name, value in old]
    assert refusal(scheme, fresh) == "bad_signature"


@timed
@pytest.mark.parametrize(
    "timestamp",
    [
        "",
        f"-{SECONDS}",
        f"+{SECONDS}",
        f" {SECONDS}",
        f"{SECONDS} ",
        f"{SECONDS}\n",
        f"{SECONDS}.0",
        f"{SECONDS}e0",
        f"{SECONDS // 1000}_{SECONDS % 1000:03}",
        f"0x{SECONDS:x}",
        str(SECONDS).replace("1", "\u0661"),
        str(SECONDS).replace("1", "\uff11"),
        str(SECONDS).replace("1", "\u00b9"),
        "nan",
        "inf",
        "1e400",
        "now",
        "9" * 12,
        "9" * 5000,
        "0" * 12 + str(SECONDS),
    ],
)
def test_a_time_that_is_no_time_is_refused_though_it_is_signed(scheme: Scheme, timestamp):
    assert refusal(scheme, with_timestamp(scheme, timestamp)) == "malformed_header"


# Invalid headers


@each
def test_without_its_headers_nothing_is_accepted(scheme: Scheme):
    headers = signed(scheme)
    assert refusal(scheme, []) == "missing_header"
    for index in range(len(headers)):
        assert refusal(scheme, headers[:index] + headers[index + 1 :]) == "missing_header"


@each_once
def test_a_repeated_header_is_refused_whichever_is_right(scheme: Scheme):
    headers = signed(scheme)
    for name, value in headers:
        for more in (value, value + "0", ""):
            assert refusal(scheme, [*headers, (name.title(), more)]) == "malformed_header"
            assert refusal(scheme, [(name.upper(), more), *headers]) == "malformed_header"


def test_the_two_names_of_a_header_are_not_mixed():
    ours = signed(STANDARD_WEBHOOKS)
    theirs = [(name.replace("webhook-", "svix-"), value) for name, value in ours]
    assert is_accepted(STANDARD_WEBHOOKS, theirs)
    for index in range(2):
        mixed = [theirs[at] if at == index else ours[at] for at in range(3)]
        assert refusal(STANDARD_WEBHOOKS, mixed) == "missing_header"
    forged = [(name, "msg_2" if name == "webhook-id" else value) for name, value in ours]
    assert refusal(STANDARD_WEBHOOKS, [*theirs, *forged]) == "bad_signature"


@pytest.mark.parametrize("scheme", [SQUARE, COINBASE, LEMON_SQUEEZY])
@pytest.mark.parametrize("value", ["", "é", "0" * 5000, "\u0661" * 64])
def test_a_header_that_no_signature_could_be_is_refused(scheme: Scheme, value):
    assert refusal(scheme, [(scheme.signature_header, value)]) == "malformed_header"
    for tail in (" ", "\n", ",", "=", "\x00"):
        [(name, right)] = signed(scheme)
        for other in (right + tail, tail + right):
            assert refusal(scheme, [(name, other)]) == "bad_signature"


def test_a_header_that_may_come_again_has_no_more_signatures_for_that():
    [right] = signed(MOLLIE)
    bad = (MOLLIE.signature_header, "sha256=AAAA")
    assert is_accepted(MOLLIE, [*[bad] * (SIGNATURES_AT_MOST - 1), right])
    assert refusal(MOLLIE, [*[bad] * SIGNATURES_AT_MOST, right]) == "malformed_header"
    assert refusal(MOLLIE, [right, (right[0], "")]) == "malformed_header"


def test_what_was_sent_to_another_address_is_refused_though_it_is_signed():
    for url in ("https://evil.example/webhooks/square", URL + "/", URL.replace("https", "http")):
        theirs = signing.square(BODY, secret=SECRETS[SQUARE], url=url)
        headers = [("Host", "evil.example"), ("X-Forwarded-Host", "evil.example"), *theirs]
        assert refusal(SQUARE, headers) == "bad_signature"


def test_no_bit_of_the_address_can_change():
    for changed in with_one_bit_changed(URL):
        refusal(SQUARE, signing.square(BODY, secret=SECRETS[SQUARE], url=changed))


def test_without_an_address_in_the_settings_nothing_is_accepted():
    with pytest.raises(Unverified) as refused:
        verify(SQUARE, body=BODY, headers=signed(SQUARE), secrets=[SECRETS[SQUARE]], now=NOON)
    assert refused.value.reason == "no_url"


@each_labelled
@pytest.mark.parametrize("value", ["", " ", ",", "=", "v1", "v2=00", "sha1=00", "é", "\x00", "t=1"])
def test_a_header_without_a_signature_is_refused(scheme: Scheme, value):
    *before, (name, _) = signed(scheme)
    assert refusal(scheme, [*before, (name, value)]) == "malformed_header"


@pytest.mark.parametrize("extra", ["t=1", "t=", f"t={SECONDS}"])
def test_a_second_time_in_stripes_header_is_refused(extra):
    [(name, value)] = signed(STRIPE)
    for forged in (f"{value},{extra}", f"{extra},{value}"):
        assert refusal(STRIPE, [(name, forged)]) == "malformed_header"


def test_stripes_header_without_a_time_is_refused():
    [(name, value)] = signed(STRIPE)
    assert refusal(STRIPE, [(name, value.split(",")[1])]) == "malformed_header"


@timed
def test_more_signatures_than_anybody_sends_are_refused_though_one_is_right(scheme: Scheme):
    *before, (name, value) = signed(scheme)
    assert scheme.separator
    bad = scheme.separator + scheme.signature_label + "AAAA"
    at_most = value + bad * (SIGNATURES_AT_MOST - 1)
    assert is_accepted(scheme, [*before, (name, at_most)])
    assert refusal(scheme, [*before, (name, at_most + bad)]) == "malformed_header"


@pytest.mark.parametrize("id", ["", ".", "msg.1", "msg 1", "msg\t1", "msg\n", "é", "m" * 256])
def test_an_id_that_none_would_send_is_refused_though_it_is_signed(id):
    message = f"{id}.{SECONDS}.".encode() + BODY
    key = base64.b64decode(STANDARD_SECRET.removeprefix("whsec_"))
    mac = base64.b64encode(hmac.digest(key, message, "sha256")).decode()
    assert refusal(STANDARD_WEBHOOKS, standard(f"v1,{mac}", id=id)) == "malformed_header"


# Other spellings of a valid signature


@pytest.mark.parametrize("scheme", [STRIPE, GITHUB], ids=lambda scheme: scheme.name)
def test_a_hex_signature_has_one_spelling(scheme: Scheme):
    [(name, value)] = signed(scheme)
    label, mac = value[:-64], value[-64:]
    encoded = base64.b64encode(bytes.fromhex(mac)).decode()
    for spelling in (
        mac.upper(),
        " ".join(mac[at : at + 2] for at in range(0, 64, 2)),
        "0x" + mac,
        mac + " ",
        " " + mac,
        mac + "00",
        encoded,
    ):
        assert refusal(scheme, [(name, label + spelling)]) == "bad_signature"


@pytest.mark.parametrize("headers", [signed(STANDARD_WEBHOOKS), privately()], ids=["v1", "v1a"])
def test_a_base64_signature_has_one_spelling(headers: Headers):
    label, _, text = headers[-1][1].partition(",")
    raw = base64.b64decode(text)
    bare = text.rstrip("=")
    spellings = {
        bare,
        text + "=",
        text[:20] + "\n" + text[20:],
        text + "\n",
        "!" + text,
        base64.urlsafe_b64encode(raw).decode(),
        raw.hex(),
        # the same bytes to a lenient decoder
        bare[:-1] + chr(ord(bare[-1]) + 1) + text[len(bare) :],
    } - {text}
    assert len(spellings) >= 6
    for spelling in spellings:
        forged = [*headers[:-1], ("webhook-signature", f"{label},{spelling}")]
        reason = refusal(STANDARD_WEBHOOKS, forged, secrets=[STANDARD_SECRET, PUBLIC])
        assert reason == "bad_signature"


def test_a_signature_of_one_kind_is_not_taken_for_the_other():
    both = [STANDARD_SECRET, PUBLIC]
    for headers, label in ((signed(STANDARD_WEBHOOKS), "v1a"), (privately(), "v1")):
        *before, (name, value) = headers
        relabelled = f"{label},{value.partition(',')[2]}"
        assert refusal(STANDARD_WEBHOOKS, [*before, (name, relabelled)], secrets=both)
    weaker = hmac.new(SECRETS[GITHUB].encode(), BODY, hashlib.sha1).hexdigest()
    for label in ("sha1=", "sha256="):
        refusal(GITHUB, [("X-Hub-Signature", label + weaker)])
        refusal(GITHUB, [("X-Hub-Signature-256", label + weaker)])


# Invalid secrets


@each
@pytest.mark.parametrize("secret", ["", " ", "\n", "\t \r\n", "\0", "\0\0\0"])
def test_an_empty_secret_opens_no_door(scheme: Scheme, secret):
    headers = signed(scheme)
    assert refusal(scheme, headers, secrets=[]) == "no_secret"
    assert refusal(scheme, headers, secrets=[secret]) == "no_secret"
    assert refusal(scheme, headers, secrets=[SECRETS[scheme], secret]) == "no_secret"
    if scheme in (STRIPE, GITHUB):
        key = secret.encode()
        message = BODY if scheme is GITHUB else b"%d." % SECONDS + BODY
        mac = hmac.digest(key, message, "sha256").hex()
        value = f"sha256={mac}" if scheme is GITHUB else f"t={SECONDS},v1={mac}"
        assert refusal(scheme, [(scheme.signature_header, value)], secrets=[secret]) == "no_secret"


@pytest.mark.parametrize(
    "secret",
    [
        "whsec_",
        "whsec_AAAA",  # three zero bytes: for a MAC the same as an empty key
        "whsec_not base64",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa-_",
        "whsec_M",
        "whsec_é",
        "whsk_AAAA",
        "whpk_",
        "whpk_AAAA",
        "whpk_not base64",
        PUBLIC + "AA",
    ],
)
def test_a_secret_that_is_no_key_opens_no_door(secret):
    for headers in (signed(STANDARD_WEBHOOKS), privately()):
        assert refusal(STANDARD_WEBHOOKS, headers, secrets=[secret]) == "no_secret"


@each
def test_another_secret_does_not_fit(scheme: Scheme):
    headers = signed(scheme)
    for secret in ("c2VjcmV0IHNlY3JldCBzZWNyZXQ=", SECRETS[scheme][:-4] + "AAAA"):
        assert refusal(scheme, headers, secrets=[secret, secret]) == "bad_signature"


def test_what_one_scheme_signed_is_nothing_to_another():
    for secret, one, other in (
        (STANDARD_SECRET, STRIPE, STANDARD_WEBHOOKS),
        (STANDARD_SECRET, STANDARD_WEBHOOKS, STRIPE),
        (STANDARD_SECRET, STRIPE, GITHUB),
        (STANDARD_SECRET, GITHUB, STRIPE),
    ):
        headers = signed(one, secret=secret)
        assert refusal(other, headers, secrets=[secret]) == "missing_header"


def test_one_secret_in_two_schemes_signs_nothing_for_the_other():
    [_, _, (_, standard_value)] = signed(STANDARD_WEBHOOKS)
    mac = base64.b64decode(standard_value.removeprefix("v1,")).hex()
    headers = [("Stripe-Signature", f"t={SECONDS},v1={mac}")]
    assert refusal(STRIPE, headers, secrets=[STANDARD_SECRET]) == "bad_signature"


def test_a_public_key_is_never_a_macs_key():
    raw = PRIVATE.public_key().public_bytes_raw()
    message = b"msg_1.%d.%b" % (SECONDS, BODY)
    for key in (raw, PUBLIC.encode(), PUBLIC.removeprefix("whpk_").encode()):
        mac = base64.b64encode(hmac.digest(key, message, "sha256")).decode()
        for label in ("v1", "v1a"):
            headers = standard(f"{label},{mac}")
            assert refusal(STANDARD_WEBHOOKS, headers, secrets=[PUBLIC]) == "bad_signature"


# Too large


@each
def test_ten_megabytes_are_refused_before_any_mac_is_computed(scheme: Scheme):
    without_a_mac = replace(scheme, digest="a digest that cannot be computed")
    headers = signed(scheme)
    with pytest.raises(ValueError, match="digest"):
        verify(
            without_a_mac,
            body=BODY,
            headers=headers,
            secrets=[SECRETS[scheme]],
            now=NOON,
            url=URL,
        )
    for size in (BODY_BYTES_AT_MOST + 1, 10 * 1024 * 1024):
        with pytest.raises(Unverified) as refused:
            verify(
                without_a_mac,
                body=bytes(size),
                headers=headers,
                secrets=[SECRETS[scheme]],
                now=NOON,
                url=URL,
            )
        assert refused.value.reason == "too_large"


@each
def test_one_byte_too_many_is_refused_though_it_is_signed(scheme: Scheme):
    body = bytes(BODY_BYTES_AT_MOST + 1)
    assert refusal(scheme, signed(scheme, body), body) == "too_large"
    assert is_accepted(scheme, signed(scheme, body[1:]), body=body[1:])


@each
def test_a_header_longer_than_anybody_sends_is_refused_though_a_signature_in_it_is_right(
    scheme: Scheme,
):
    *before, (name, value) = signed(scheme)
    for filling in ("v1=", "v1,", ",", " ", ",v0=0", "v1a,AAAA ", "sha256=", "\x00"):
        longer = value + (filling * 1_000_000)[:1_000_000]
        assert refusal(scheme, [*before, (name, longer)]) == "malformed_header"
    if scheme.separator:
        full = value + scheme.separator
        full += "0" * (HEADER_CHARACTERS_AT_MOST - len(full))
        assert is_accepted(scheme, [*before, (name, full)])
        assert refusal(scheme, [*before, (name, full + "0")]) == "malformed_header"


# Arbitrary input


header_text = st.text(max_size=60) | st.text(alphabet="tv1a=, whsec0f.", max_size=60)


@each
@settings(deadline=None)
@given(
    body=st.binary(max_size=60),
    values=st.lists(st.tuples(st.integers(0, 5), header_text), max_size=6),
)
def test_whatever_is_sent_nothing_but_unverified_is_raised(scheme: Scheme, body, values):
    names = [name for name, _ in signed(scheme)] + ["svix-id", "svix-signature", "svix-timestamp"]
    refusal(scheme, [(names[index % len(names)], value) for index, value in values], body)


@each
@settings(deadline=None)
@given(secret=st.text(max_size=40), tail=st.sampled_from(["", "whsec_", "whpk_"]))
def test_whatever_secret_is_configured_nothing_but_unverified_is_raised(
    scheme: Scheme, secret, tail
):
    text = tail + secret
    if text != SECRETS[scheme]:
        refusal(scheme, signed(scheme), secrets=[text, "\ud800"])


def test_the_reason_never_reaches_the_sender():
    with pytest.raises(Unverified) as refused:
        verify(
            STRIPE,
            body=BODY,
            headers=signed(STRIPE),
            secrets=[STRIPE_SECRET],
            now=NOON + timedelta(hours=1),
        )
    error = refused.value
    assert (error.reason, error.http_status, error.name) == ("too_old", 400, "WEBHOOK_UNVERIFIED")
    assert "old" not in str(error)
    assert error.__cause__ is None
