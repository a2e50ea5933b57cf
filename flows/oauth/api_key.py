"""Check the API keys, and the user names and passwords (HTTP Basic), that people type on a page.

Risks:

- A wrong key is stored, and the tool fails later, when the person cannot correct the key. So one
  request to the provider's API tests the key and identifies the account.
- A key is sent to a wrong host. So a key, like an access token, is sent only to the declared hosts.
"""

import base64
import re
from collections.abc import Mapping
from datetime import datetime

from flows.elicitation.flow import Talk
from flows.elicitation.states import Json
from flows.errors import ElicitError, Failed, InvalidQuestion
from flows.oauth.authorization_code import Grant
from flows.oauth.declaration import ProviderKey
from flows.oauth.provider import Client, Provider
from flows.oauth.requests import ApiAccess, asked_who
from flows.oauth.responses import TokenSet, read_person

KEY, USER, TENANT = "key", "user", "tenant"
_HEADER_VALUE = re.compile(r"[\x21-\x7e]+")
# Temporary refusals, which do not mean that the key is wrong (RFC 9110, 15.5; RFC 6585, 4;
# RFC 8470).
PASSING = frozenset({408, 425, 429})


class KeyRefused(ElicitError):
    """The typed key does not work. `field` is the field of the page that has to be corrected."""

    name = "ELICITATION_KEY_REFUSED"
    http_status = 422

    def __init__(self, message: str, *, field: str = KEY) -> None:
        self.field = field
        super().__init__(message)


def token_of(provider: Provider, typed: Mapping[str, Json]) -> str:
    """Return the value to send with requests: the key, or the encoded Basic credentials.

    Raises:
        KeyRefused: The typed text has characters that a request cannot contain, or is empty.
    """
    declared, key = declared_key(provider), str(typed[KEY])
    if declared.user is not None:
        user = str(typed[USER]).strip()
        if not user or ":" in user or not user.isprintable():
            raise KeyRefused(
                f"{declared.user}: must not be empty or contain a colon or invisible characters.",
                field=USER,
            )
        if not key:
            raise KeyRefused(f"{declared.label}: must not be empty.")
        return base64.b64encode(f"{user}:{key}".encode()).decode()
    key = key.strip()
    if not _HEADER_VALUE.fullmatch(key):
        raise KeyRefused(
            "It has spaces or characters that no key has. Copy the key again, without other text."
        )
    return key


def tested(client: Client, token: str, *, now: datetime) -> Talk[Grant]:
    """Test the key with one request, and return the account that it belongs to.

    Raises:
        KeyRefused: The provider refuses the key.
        Failed: The provider did not answer, or answered with an unexpected status.
    """
    provider, declared = client.provider, declared_key(client.provider)
    assert provider.person is not None  # a declaration with `key` has one
    access = ApiAccess(token=token, now=now)
    reply = yield from asked_who(provider, provider.person, access=access)
    assert reply is not None
    status, label = reply.status_code, provider.label
    if 400 <= status < 500 and status not in PASSING:
        raise KeyRefused(
            f"{label} refuses this {declared.label} (HTTP {status}). Copy it again, or make a new "
            "one."
        )
    if status != declared.status:
        raise Failed(f"{label} could not test the {declared.label} (HTTP {status}).")
    others = {} if provider.tenant is None else {TENANT: provider.tenant}
    try:
        person, details = read_person(reply, provider, provider.person, others=others)
    except Failed as error:
        raise KeyRefused(str(error)) from None
    return Grant(
        tokens=TokenSet(access_token=token),
        scopes=(),
        person=person,
        issuer="",
        details=details,
        tenant=provider.tenant,
    )


def declared_key(provider: Provider) -> ProviderKey:
    """Return the declaration of the provider's API keys.

    Raises:
        InvalidQuestion: The provider has no API keys.
    """
    if provider.key is None:
        raise InvalidQuestion(f"{provider.label} has no API keys. Use elicit.oauth instead.")
    return provider.key
