"""GitHub, by a GitHub App acting for a person: permissions of the app instead of scopes.

Experimental: made by GitHub's documentation; the removal of the whole grant is unchecked.
"""

from dataclasses import replace

from flows.oauth.provider import Revocation
from flows.providers.github import github

github_app = replace(
    github,
    name="github_app",
    label="GitHub App",
    has_scopes=False,
    covers={},
    scope_words={},
    # The token's own deletion would leave what renews it.
    revoke=Revocation(
        url="https://api.github.com/applications/{client_id}/grant",
        kind="delete",
    ),
    manage="https://github.com/settings/apps/authorizations",
    sandbox=None,
)
