"""Declarations: converted to data and back, they are unchanged."""

from dataclasses import replace

import msgspec
import pytest

from flows.oauth.provider import Provider, as_data, provider_in
from flows.providers import PROVIDERS, gitlab, microsoft, openid

ALL = [
    *PROVIDERS.values(),
    microsoft("contoso.example"),
    gitlab("https://git.example"),
    openid("acme", "https://login.acme.example"),
]


@pytest.mark.parametrize("provider", ALL, ids=lambda provider: provider.name)
def test_every_provider_survives_json_serialization(provider: Provider) -> None:
    data = msgspec.json.decode(msgspec.json.encode(as_data(provider)))
    found = provider_in(data)
    assert found == provider
    assert found.scope_words == provider.scope_words
    assert found.covers == provider.covers
    assert found.troubles == provider.troubles


def test_unknown_field_of_newer_version_is_ignored() -> None:
    provider = openid("acme", "https://login.acme.example")
    data = as_data(provider)
    assert isinstance(data, dict)
    assert provider_in({**data, "unheard_of": 1}) == provider


def test_changed_declaration_is_not_equal() -> None:
    provider = openid("acme", "https://login.acme.example")
    assert provider_in(as_data(replace(provider, label="Other"))) != provider
