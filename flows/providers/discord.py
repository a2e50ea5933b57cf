"""Discord.

Experimental: written from Discord's documentation, untested.
"""

from flows.oauth.provider import PersonProbe, Provider, Revocation

_API = "https://discord.com/api"

discord: Provider = Provider(
    name="discord",
    label="Discord",
    authorize="https://discord.com/oauth2/authorize",
    token=f"{_API}/oauth2/token",
    rotates=True,
    revoke=Revocation(url=f"{_API}/oauth2/token/revoke"),
    api=f"{_API}/v10",
    always=("identify",),
    switch=(("prompt", "consent"),),
    person=PersonProbe(url=f"{_API}/v10/users/@me", id="id", label="username", name="global_name"),
    scope_words={
        "identify": "See your user name and picture",
        "email": "See your e-mail address",
        "connections": "See the accounts that you have linked",
        "guilds": "See which servers you are in",
        "guilds.join": "Join servers for you",
        "guilds.members.read": "See your roles and nicknames in your servers",
        "openid": "Know that it is you",
    },
    scope_writes=("guilds.join",),
)
