"""The settings of outgoing events: an address for each name, with its secrets and event types."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx

from flows.origin import is_loopback
from webapp.events.addresses import (
    ADDRESSES_AT_MOST,
    SECRET_BYTES_AT_LEAST,
    SECRET_BYTES_AT_MOST,
    TYPES,
    EventAddress,
    is_pattern,
    is_secret,
)
from webapp.settings.parsers import each
from webapp.settings.table import Setting, Values

_URL_CHARACTERS_AT_MOST = 2000


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        httpx.URL(text)  # httpx sends the request, and may parse the URL differently
    except (ValueError, httpx.InvalidURL):
        host, port, parts = "", None, urlsplit("")
    is_plain = (
        re.fullmatch(rf"[!-~]{{1,{_URL_CHARACTERS_AT_MOST}}}", text) and "@" not in parts.netloc
    )
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    if text and not (host and port != 0 and is_plain and is_safe and not parts.fragment):
        raise ValueError(
            "it must be an https address, such as https://crm.example.com/hooks/elicit."
        )
    return text


def _secret(word: str) -> str:
    if not is_secret(word):
        raise ValueError(
            f"a secret must be whsec_ and then {SECRET_BYTES_AT_LEAST} to {SECRET_BYTES_AT_MOST} "
            "bytes in base64. Create one with: elicit events secret"
        )
    return word


def _pattern(word: str) -> str:
    if not is_pattern(word):
        raise ValueError(
            f"{word!r} is not a type of event; the types are {', '.join(TYPES.values())}."
        )
    return word


EVENTS_URL = Setting(
    name="ELICIT_EVENTS_{NAME}_URL",
    parse=_url,
    says="the address of an outgoing webhook: an https address on the public internet or in "
    f"`ELICIT_TRUSTED_HOSTS`. `{{NAME}}` is your name for it, such as CRM: "
    f"[events](../how-to/webhooks.md). {ADDRESSES_AT_MOST} at most",
)
EVENTS_SECRET = Setting(
    name="ELICIT_EVENTS_{NAME}_SECRET",
    parse=each(_secret),
    says="the secret that signs the events for this address, from `elicit events secret`. During a "
    "rotation, several secrets, separated by commas: each event is signed with all of them",
)
EVENTS_TYPES = Setting(
    name="ELICIT_EVENTS_{NAME}_TYPES",
    parse=each(_pattern),
    default="*",
    says="the event types that this address receives, separated by commas, with `*` as a wildcard, "
    "such as `question.*,payment.refunded`",
)
EVENTS = (EVENTS_URL, EVENTS_SECRET, EVENTS_TYPES)


def names_in(environment: Mapping[str, str]) -> list[str]:
    """Return the upper-case names of the addresses that have at least one setting."""
    matches = [
        row.match(name) for row in EVENTS for name, value in environment.items() if value.strip()
    ]
    return sorted({match[1] for match in matches if match is not None})


def read_events(values: Values) -> tuple[EventAddress, ...]:
    """Return the event addresses that the environment configures. Append faults to the problems."""
    found = list[EventAddress]()
    for name in names_in(values.environment):
        url_row, secret_row = EVENTS_URL.of(name), EVENTS_SECRET.of(name)
        types_row = EVENTS_TYPES.of(name)
        is_set = [row for row in (url_row, secret_row, types_row) if values.text(row)]
        values.problems += [
            f"{row.name}: not set, and {is_set[0].name} is."
            for row in (url_row, secret_row)
            if row not in is_set
        ]
        url, secrets = values.read(url_row), values.read(secret_row)
        types = values.read(types_row)
        if url and secrets:
            found.append(EventAddress(name=name.lower(), url=url, secrets=secrets, types=types))
    if len(found) > ADDRESSES_AT_MOST:
        values.problems.append(
            f"{EVENTS_URL.of(found[-1].name).name}: there are {len(found)} addresses of events, "
            f"and {ADDRESSES_AT_MOST} at most; leave one out."
        )
    return tuple(found)
