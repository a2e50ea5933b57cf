"""Notion: there are no scopes; the person chooses the pages that the tool can read.

Experimental: written from Notion's documentation, untested.
"""

from flows.oauth.provider import PersonProbe, Provider, Revocation

_API = "https://api.notion.com/v1"
_OWNER = "bot.owner.user"

notion: Provider = Provider(
    name="notion",
    label="Notion",
    authorize=f"{_API}/oauth/authorize",
    token=f"{_API}/oauth/token",
    rotates=True,
    revoke=Revocation(url=f"{_API}/oauth/revoke", kind="json"),
    api=_API,
    has_scopes=False,
    body="json",
    extra=(("owner", "user"),),
    headers=(("Notion-Version", "2022-06-28"),),
    person=PersonProbe(
        url=f"{_API}/users/me",
        # One person has the same id in all workspaces.
        id=("reply.workspace_id", f"{_OWNER}.id"),
        label=(f"{_OWNER}.person.email", "reply.workspace_name"),
        name=f"{_OWNER}.name",
        picture=f"{_OWNER}.avatar_url",
    ),
)
