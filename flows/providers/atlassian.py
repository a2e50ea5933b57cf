"""Atlassian: Jira and Confluence in the cloud, on the sites that the person chooses.

A tool finds these sites with `GET /oauth/token/accessible-resources`. A site's id is part of its
API address: `/ex/jira/{id}/rest/api/3/...`. Experimental: written from Atlassian's documentation,
untested. Tokens are never revoked, because Atlassian has no revocation endpoint.
"""

from flows.oauth.provider import KnownRefusal, PersonProbe, Provider

_LOGIN, _API = "https://auth.atlassian.com", "https://api.atlassian.com"

atlassian: Provider = Provider(
    name="atlassian",
    label="Atlassian",
    authorize=f"{_LOGIN}/authorize",
    token=f"{_LOGIN}/oauth/token",
    rotates=True,
    refresh_unused_days=90,
    manage="https://id.atlassian.com/manage-profile/apps",
    api=_API,
    client_auth="post",
    body="json",
    always=("offline_access", "read:me"),
    unmentioned=("offline_access",),
    extra=(("audience", "api.atlassian.com"), ("prompt", "consent")),
    person=PersonProbe(
        url=f"{_API}/me", id="account_id", label="email", name="name", picture="picture"
    ),
    refusals=(
        KnownRefusal(value="unauthorized_client", description="refresh_token is invalid"),
        KnownRefusal(value="access_denied", means="client"),  # a wrong client secret
    ),
    scope_words={
        "offline_access": "Go on while you are away",
        "read:me": "Read your profile",
        "read:jira-user": "See the people in Jira",
        "read:jira-work": "Read your projects and issues in Jira",
        "write:jira-work": "Create and change issues in Jira",
        "manage:jira-project": "Manage the settings of projects in Jira",
        "read:confluence-content.all": "Read pages in Confluence",
        "write:confluence-content": "Create and change pages in Confluence",
        "search:confluence": "Search Confluence",
    },
    scope_writes=(
        "write:jira-work",
        "manage:jira-project",
        "write:confluence-content",
    ),
)
