"""The providers that come with the library, each a declaration; PROVIDERS has them by name."""

from collections.abc import Mapping

from flows.provider import Provider
from flows.providers.github import github
from flows.providers.google import google
from flows.providers.openid import openid

PROVIDERS: Mapping[str, Provider] = {each.name: each for each in (github, google)}

__all__ = ["PROVIDERS", "github", "google", "openid"]
