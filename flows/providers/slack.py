"""Slack, acting for the person and not as a bot.

Experimental: written from Slack's documentation; it is untested whether revoking an access token
also ends the refresh token.
"""

from dataclasses import replace

from flows.oauth.provider import KnownRefusal, PersonProbe, Provider, Revocation

_API = "https://slack.com/api"


def _in_sandbox(base: str) -> Provider:
    api = f"{base}/slack/api"
    return replace(
        slack,
        authorize=f"{base}/slack/oauth/v2/authorize",
        token=f"{api}/oauth.v2.access",
        api=api,
        api_hosts=(),
        person=replace(_PERSON, url=f"{api}/auth.test"),
        revoke=Revocation(url=f"{api}/auth.revoke", kind="bearer"),
    )


# A user id is only unique within its workspace.
_PERSON = PersonProbe(
    url=f"{_API}/auth.test", id=("team_id", "user_id"), label=("user", "team"), post="{}"
)

slack: Provider = Provider(
    name="slack",
    label="Slack",
    authorize="https://slack.com/oauth/v2/authorize",
    token=f"{_API}/oauth.v2.access",
    rotates=True,  # if the app has enabled token rotation
    revoke=Revocation(url=f"{_API}/auth.revoke", kind="bearer"),
    api=_API,
    api_hosts=("https://slack.com", "https://files.slack.com"),
    scope_parameter="user_scope",
    scope_separator=",",
    reply_scope_separator=",",
    token_path=("authed_user",),
    person=_PERSON,
    refusals=(
        *(
            KnownRefusal(value=word)
            for word in ("invalid_refresh_token", "token_expired", "token_revoked")
        ),
        *(
            KnownRefusal(value=word, means="client")
            for word in ("bad_client_secret", "invalid_client_id")
        ),
    ),
    scope_words={
        "chat:write": "Send messages as you",
        "channels:read": "See the public channels",
        "channels:history": "Read the messages of public channels",
        "groups:history": "Read the messages of your private channels",
        "im:history": "Read your direct messages",
        "users:read": "See the people of the workspace",
        "users:read.email": "See their e-mail addresses",
        "users.profile:write": "Change your profile and status",
        "files:read": "See your files",
        "files:write": "Upload, change and delete files as you",
        "reactions:write": "Add reactions as you",
        "search:read": "Search the workspace",
    },
    scope_writes=("chat:write", "users.profile:write", "reactions:write"),
    scope_deletes=("files:write",),
    sandbox=_in_sandbox,
)
