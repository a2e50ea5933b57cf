"""The OAuth providers of the library, each a declaration; PROVIDERS maps names to providers.

Providers that depend on an address or a tenant are functions that return a declaration.
"""

from collections.abc import Mapping

from flows.oauth.provider import PersonProbe, Provider, ProviderKey
from flows.providers.catalogue_work import atlassian, discord, dropbox, gitlab, linear, notion
from flows.providers.github import github, github_app
from flows.providers.openid import google, microsoft, openid
from flows.providers.slack import slack

PROVIDERS: Mapping[str, Provider] = {
    each.name: each
    for each in (
        atlassian,
        discord,
        dropbox,
        github,
        github_app,
        google,
        linear,
        notion,
        slack,
    )
}

__all__ = [
    "PROVIDERS",
    "PersonProbe",
    "Provider",
    "ProviderKey",
    "atlassian",
    "discord",
    "dropbox",
    "github",
    "github_app",
    "gitlab",
    "google",
    "linear",
    "microsoft",
    "notion",
    "openid",
    "slack",
]
