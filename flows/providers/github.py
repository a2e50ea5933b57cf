"""GitHub, with an OAuth app, or with a GitHub App that acts for a person.

Experimental: written from GitHub's documentation; the removal of the whole grant is untested.
"""

from dataclasses import replace
from typing import Final

from flows.oauth.provider import KnownRefusal, PersonProbe, Provider, Revocation
from flows.webhooks.signatures import Scheme

GITHUB: Final = Scheme(
    name="github", signature_header="x-hub-signature-256", signature_label="sha256="
)


def _in_sandbox(base: str) -> Provider:
    login, api = f"{base}/github/login/oauth", f"{base}/github/api"
    return replace(
        github,
        issuer=login,
        authorize=f"{login}/authorize",
        token=f"{login}/access_token",
        revoke=Revocation(url=api + _DELETION, kind="delete"),
        manage=None,
        device=None,
        api=api,
        api_hosts=(),
        person=replace(_PERSON, url=f"{api}/user"),
    )


_DELETION = "/applications/{client_id}/token"
_PERSON = PersonProbe(
    url="https://api.github.com/user", id="id", label="login", name="name", picture="avatar_url"
)

github: Provider = Provider(
    name="github",
    label="GitHub",
    issuer="https://github.com/login/oauth",
    sends_issuer=True,
    authorize="https://github.com/login/oauth/authorize",
    token="https://github.com/login/oauth/access_token",  # noqa: S106 # an address
    rotates=True,  # if the app has enabled token expiry
    revoke=Revocation(url="https://api.github.com" + _DELETION, kind="delete"),
    manage="https://github.com/settings/applications",
    device="https://github.com/login/device/code",
    switch=(("prompt", "select_account"),),
    api="https://api.github.com",
    api_hosts=("https://api.github.com", "https://uploads.github.com"),
    reply_scope_separator=",",  # requested with spaces, returned with commas
    client_auth="post",
    replies="form",  # JSON is requested, but a proxy may drop the Accept header
    account_hint="login",
    person=_PERSON,
    refusals=(
        KnownRefusal(value="bad_refresh_token"),
        KnownRefusal(value="incorrect_client_credentials", means="client"),
    ),
    covers={
        "repo": (
            "public_repo",
            "repo:invite",
            "repo:status",
            "repo_deployment",
            "security_events",
        ),
        "user": ("read:user", "user:email", "user:follow"),
        "admin:org": ("read:org", "write:org"),
        "write:org": ("read:org",),
        "admin:repo_hook": ("read:repo_hook", "write:repo_hook"),
        "write:repo_hook": ("read:repo_hook",),
        "admin:public_key": ("read:public_key", "write:public_key"),
        "write:public_key": ("read:public_key",),
        "write:packages": ("read:packages",),
        "project": ("read:project",),
    },
    scope_words={
        "repo": "Read and write all your repositories, also private ones",
        "public_repo": "Read and write your public repositories",
        "repo:status": "Read and set the status of commits, also in private repositories",
        "read:user": "Read your profile",
        "user:email": "Read your e-mail addresses",
        "user:follow": "Follow and unfollow people for you",
        "user": "Read and change your profile, e-mail addresses included",
        "read:org": "See your organisations and teams",
        "write:org": "Change who is shown as a member of your organisations",
        "admin:org": "Manage your organisations, their teams and members",
        "gist": "Write gists",
        "notifications": "Read your notifications and mark them as read",
        "workflow": "Change the workflows of GitHub Actions in your repositories",
        "delete_repo": "Delete repositories",
        "admin:repo_hook": "Manage the webhooks of your repositories",
        "read:packages": "Download packages",
        "write:packages": "Publish packages",
        "read:project": "Read your projects",
        "project": "Read and change your projects",
    },
    scope_writes=(
        "repo",
        "public_repo",
        "repo:status",
        "user:follow",
        "user",
        "write:org",
        "gist",
        "notifications",
        "workflow",
        "write:packages",
        "project",
    ),
    scope_deletes=("delete_repo", "admin:org", "admin:repo_hook"),
    sandbox=_in_sandbox,
)


github_app: Provider = replace(
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
