"""Declarations from the vendors' documentation: work, files, design and code.

No declaration was tested with the vendor's real service. `flows.providers.catalogue` has the
source of each.
"""

from flows.oauth.provider import KnownRefusal, PersonProbe, Provider, Revocation

asana: Provider = Provider(
    name="asana",
    label="Asana",
    authorize="https://app.asana.com/-/oauth_authorize",
    token="https://app.asana.com/-/oauth_token",
    revoke=Revocation(url="https://app.asana.com/-/oauth_revoke"),
    api="https://app.asana.com/api/1.0",
    client_auth="post",
    person=PersonProbe(
        url="https://app.asana.com/api/1.0/users/me", id="data.gid", label="data.email"
    ),
)
clickup: Provider = Provider(
    name="clickup",
    label="ClickUp",
    authorize="https://app.clickup.com/api",
    token="https://api.clickup.com/api/v2/oauth/token",
    api="https://api.clickup.com/api/v2",
    has_scopes=False,
    client_auth="post",
    person=PersonProbe(url="https://api.clickup.com/api/v2/user", id="user.id", label="user.email"),
)
monday: Provider = Provider(
    name="monday",
    label="monday.com",
    authorize="https://auth.monday.com/oauth2/authorize",
    token="https://auth.monday.com/oauth2/token",
    api="https://api.monday.com/v2",
    client_auth="post",
    pkce=False,
    always=("me:read", "account:read"),
    person=PersonProbe(
        url="https://api.monday.com/v2",
        id=("data.me.account.id", "data.me.id"),
        label=("data.me.email", "data.me.account.id"),
        post='{"query":"{ me { id email account { id } } }"}',
    ),
)
airtable: Provider = Provider(
    name="airtable",
    label="Airtable",
    authorize="https://airtable.com/oauth2/v1/authorize",
    token="https://airtable.com/oauth2/v1/token",
    rotates=True,
    api="https://api.airtable.com/v0",
    always=("user.email:read",),
    person=PersonProbe(url="https://api.airtable.com/v0/meta/whoami", id="id", label="email"),
)
zoom: Provider = Provider(
    name="zoom",
    label="Zoom",
    authorize="https://zoom.us/oauth/authorize",
    token="https://zoom.us/oauth/token",
    rotates=True,
    revoke=Revocation(url="https://zoom.us/oauth/revoke"),
    api="https://api.zoom.us/v2",
    scope_separator=",",
    person=PersonProbe(url="https://api.zoom.us/v2/users/me", id="id", label="email"),
)
calendly: Provider = Provider(
    name="calendly",
    label="Calendly",
    authorize="https://auth.calendly.com/oauth/authorize",
    token="https://auth.calendly.com/oauth/token",
    rotates=True,
    revoke=Revocation(url="https://auth.calendly.com/oauth/revoke"),
    api="https://api.calendly.com",
    keep={"organization": "resource.current_organization"},
    person=PersonProbe(
        url="https://api.calendly.com/users/me", id="resource.uri", label="resource.email"
    ),
)
box: Provider = Provider(
    name="box",
    label="Box",
    refresh_unused_days=60,
    authorize="https://account.box.com/api/oauth2/authorize",
    token="https://api.box.com/oauth2/token",
    rotates=True,
    revoke=Revocation(url="https://api.box.com/oauth2/revoke"),
    api="https://api.box.com/2.0",
    client_auth="post",
    person=PersonProbe(url="https://api.box.com/2.0/users/me", id="id", label="login"),
)
figma: Provider = Provider(
    name="figma",
    label="Figma",
    authorize="https://www.figma.com/oauth",
    token="https://api.figma.com/v1/oauth/token",
    refresh="https://api.figma.com/v1/oauth/refresh",
    api="https://api.figma.com/v1",
    scope_separator=",",
    always=("current_user:read",),
    person=PersonProbe(url="https://api.figma.com/v1/me", id="id", label="email"),
)
canva: Provider = Provider(
    name="canva",
    label="Canva",
    authorize="https://www.canva.com/api/oauth/authorize",
    token="https://api.canva.com/rest/v1/oauth/token",
    rotates=True,
    revoke=Revocation(url="https://api.canva.com/rest/v1/oauth/revoke"),
    api="https://api.canva.com/rest/v1",
    person=PersonProbe(
        url="https://api.canva.com/rest/v1/users/me",
        id=("team_user.team_id", "team_user.user_id"),
        label=("team_user.user_id", "team_user.team_id"),
    ),
)
miro: Provider = Provider(
    name="miro",
    label="Miro",
    authorize="https://miro.com/oauth/authorize",
    token="https://api.miro.com/v1/oauth/token",
    rotates=True,
    api="https://api.miro.com/v2",
    has_scopes=False,
    client_auth="post",
    keep={"team_id": "reply.team_id"},
    person=PersonProbe(
        url="https://api.miro.com/v1/users/me",
        id=("reply.team_id", "id"),
        label=("name", "reply.team_id"),
    ),
)
typeform: Provider = Provider(
    name="typeform",
    label="Typeform",
    authorize="https://api.typeform.com/oauth/authorize",
    token="https://api.typeform.com/oauth/token",
    api="https://api.typeform.com",
    client_auth="post",
    pkce=False,
    always=("offline", "accounts:read"),
    unmentioned=("offline",),
    person=PersonProbe(url="https://api.typeform.com/me", id="user_id", label="email"),
)
webflow: Provider = Provider(
    name="webflow",
    label="Webflow",
    authorize="https://webflow.com/oauth/authorize",
    token="https://api.webflow.com/oauth/access_token",
    api="https://api.webflow.com/v2",
    client_auth="post",
    always=("authorized_user:read",),
    person=PersonProbe(
        url="https://api.webflow.com/v2/token/authorized_by", id="id", label="email"
    ),
)
supabase: Provider = Provider(
    name="supabase",
    label="Supabase",
    authorize="https://api.supabase.com/v1/oauth/authorize",
    token="https://api.supabase.com/v1/oauth/token",
    api="https://api.supabase.com/v1",
    has_scopes=False,
    person=PersonProbe(
        url="https://api.supabase.com/v1/profile", id="gotrue_id", label="primary_email"
    ),
)
vercel: Provider = Provider(
    name="vercel",
    label="Vercel",
    authorize="https://vercel.com/oauth/authorize",
    token="https://api.vercel.com/login/oauth/token",
    rotates=True,
    revoke=Revocation(url="https://api.vercel.com/login/oauth/token/revoke"),
    api="https://api.vercel.com",
    client_auth="post",
    always=("openid", "email", "offline_access"),
    unmentioned=("offline_access",),
    person=PersonProbe(url="https://api.vercel.com/login/oauth/userinfo", id="sub", label="email"),
)
github_enterprise: Provider = Provider(
    name="github_enterprise",
    label="GitHub Enterprise",
    tenants=("*.ghe.com",),
    tenant_label="Your enterprise's address, such as acme.ghe.com",
    authorize="https://{tenant}/login/oauth/authorize",
    token="https://{tenant}/login/oauth/access_token",
    api="https://api.{tenant}",
    reply_scope_separator=",",
    client_auth="post",
    replies="form",
    person=PersonProbe(url="https://api.{tenant}/user", id="id", label=("login", "tenant")),
    refusals=(KnownRefusal(value="bad_refresh_token"),),
)
