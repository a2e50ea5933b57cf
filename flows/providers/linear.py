"""Linear: its API is GraphQL, and so is the query for the account's owner.

Experimental: written from Linear's documentation; the response of its revocation is untested.
"""

from flows.oauth.provider import PersonProbe, Provider, Revocation

_API = "https://api.linear.app"
_VIEWER = "data.viewer"

linear: Provider = Provider(
    name="linear",
    label="Linear",
    authorize="https://linear.app/oauth/authorize",
    token=f"{_API}/oauth/token",
    rotates=True,
    revoke=Revocation(url=f"{_API}/oauth/revoke"),
    api=_API,
    scope_separator=",",
    client_auth="post",
    always=("read",),
    switch=(("prompt", "consent"),),
    person=PersonProbe(
        url=f"{_API}/graphql",
        id=f"{_VIEWER}.id",
        label=f"{_VIEWER}.email",
        name=f"{_VIEWER}.name",
        picture=f"{_VIEWER}.avatarUrl",
        post='{"query":"{ viewer { id email name avatarUrl } }"}',
    ),
    covers={"write": ("issues:create", "comments:create", "timeSchedule:write")},
    scope_words={
        "read": "Read all that you can",
        "write": "Read and change all that you can",
        "issues:create": "Create issues",
        "comments:create": "Create comments",
        "timeSchedule:write": "Create and change time schedules",
        "admin": "Administer the workspace",
    },
    scope_writes=(
        "write",
        "issues:create",
        "comments:create",
        "timeSchedule:write",
    ),
    scope_deletes=("admin",),
)
