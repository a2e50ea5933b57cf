"""GitHub, with a GitHub App that acts for a person: app permissions instead of scopes.

Experimental: written from GitHub's documentation; the removal of the whole grant is untested.
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
    scope_writes=(),
    scope_deletes=(),
    # Deleting only the token would leave its refresh token valid.
    revoke=Revocation(
        url="https://api.github.com/applications/{client_id}/grant",
        kind="delete",
    ),
    manage="https://github.com/settings/apps/authorizations",
    sandbox=None,
)
