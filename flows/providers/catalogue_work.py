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


_ATLASSIAN_LOGIN, _ATLASSIAN = "https://auth.atlassian.com", "https://api.atlassian.com"

atlassian: Provider = Provider(
    name="atlassian",
    label="Atlassian",
    authorize=f"{_ATLASSIAN_LOGIN}/authorize",
    token=f"{_ATLASSIAN_LOGIN}/oauth/token",
    rotates=True,
    refresh_unused_days=90,
    manage="https://id.atlassian.com/manage-profile/apps",
    api=_ATLASSIAN,
    client_auth="post",
    body="json",
    always=("offline_access", "read:me"),
    unmentioned=("offline_access",),
    extra=(("audience", "api.atlassian.com"), ("prompt", "consent")),
    person=PersonProbe(
        url=f"{_ATLASSIAN}/me", id="account_id", label="email", name="name", picture="picture"
    ),
    refusals=(
        KnownRefusal(value="unauthorized_client", description="refresh_token is invalid"),
        KnownRefusal(value="access_denied", means="client"),  # a wrong client secret
    ),
    scope_words={
        "offline_access": "Keep access while you are away",
        "read:me": "Read your profile",
        "read:jira-user": "See the people in Jira",
        "read:jira-work": "Read your projects and issues in Jira",
        "write:jira-work": "Create and change issues in Jira",
        "manage:jira-project": "Manage the settings of projects in Jira",
        "read:confluence-content.all": "Read pages in Confluence",
        "write:confluence-content": "Create and change pages in Confluence",
        "search:confluence": "Search Confluence",
    },
    scope_writes=("write:jira-work", "manage:jira-project", "write:confluence-content"),
)


_DISCORD = "https://discord.com/api"

discord: Provider = Provider(
    name="discord",
    label="Discord",
    authorize="https://discord.com/oauth2/authorize",
    token=f"{_DISCORD}/oauth2/token",
    rotates=True,
    revoke=Revocation(url=f"{_DISCORD}/oauth2/token/revoke"),
    api=f"{_DISCORD}/v10",
    always=("identify",),
    switch=(("prompt", "consent"),),
    person=PersonProbe(
        url=f"{_DISCORD}/v10/users/@me", id="id", label="username", name="global_name"
    ),
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


_DROPBOX = "https://api.dropboxapi.com"

dropbox: Provider = Provider(
    name="dropbox",
    label="Dropbox",
    authorize="https://www.dropbox.com/oauth2/authorize",
    token=f"{_DROPBOX}/oauth2/token",
    revoke=Revocation(url=f"{_DROPBOX}/2/auth/token/revoke", kind="bearer"),
    manage="https://www.dropbox.com/account/connected_apps",
    api=f"{_DROPBOX}/2",
    api_hosts=(_DROPBOX, "https://content.dropboxapi.com"),
    always=("account_info.read",),
    extra=(("token_access_type", "offline"),),
    switch=(("force_reauthentication", "true"),),
    person=PersonProbe(
        url=f"{_DROPBOX}/2/users/get_current_account",
        id="account_id",
        label="email",
        name="name.display_name",
        picture="profile_photo_url",
        post="null",
    ),
    scope_words={
        "account_info.read": "See your name and e-mail address",
        "files.metadata.read": "See the names of your files and folders",
        "files.metadata.write": "Change the names and tags of your files and folders",
        "files.content.read": "Download your files",
        "files.content.write": "Upload, change and delete your files",
        "sharing.read": "See what you share and with whom",
        "sharing.write": "Share your files and folders",
        "file_requests.read": "See your requests for files",
    },
    scope_writes=("files.metadata.write", "sharing.write"),
    scope_deletes=("files.content.write",),
)


def gitlab(
    base: str = "https://gitlab.com", *, name: str = "gitlab", label: str = "GitLab"
) -> Provider:
    """Return the provider for the GitLab at an address.

    Args:
        base: The address of the GitLab.
        name: The name of the provider, and of its settings.
        label: The name that people read.

    Returns:
        The provider.

    Raises:
        InvalidQuestion: The address or the name is not valid.
    """
    base = base.rstrip("/")
    return Provider(
        name=name,
        label=label,
        issuer=base,
        authorize=f"{base}/oauth/authorize",
        token=f"{base}/oauth/token",
        rotates=True,
        revoke=Revocation(url=f"{base}/oauth/revoke"),
        manage=f"{base}/-/user_settings/applications",
        device=f"{base}/oauth/authorize_device",
        api=f"{base}/api/v4",
        client_auth="post",
        always=("read_user",),
        person=PersonProbe(
            url=f"{base}/api/v4/user",
            id="id",
            label="username",
            name="name",
            picture="avatar_url",
        ),
        covers={
            "api": ("read_api", "read_user", "read_repository", "write_repository"),
            "read_api": ("read_user",),
            "write_repository": ("read_repository",),
        },
        scope_words={
            "read_user": "Read your profile",
            "api": "Read and change all that you can, on your behalf",
            "read_api": "Read all that you can",
            "read_repository": "Read your repositories",
            "write_repository": "Read and change your repositories",
            "openid": "Know that it is you",
            "email": "See your e-mail address",
        },
        scope_writes=("api", "write_repository"),
    )


_LINEAR = "https://api.linear.app"
_LINEAR_VIEWER = "data.viewer"

linear: Provider = Provider(
    name="linear",
    label="Linear",
    authorize="https://linear.app/oauth/authorize",
    token=f"{_LINEAR}/oauth/token",
    rotates=True,
    revoke=Revocation(url=f"{_LINEAR}/oauth/revoke"),
    api=_LINEAR,
    scope_separator=",",
    client_auth="post",
    always=("read",),
    switch=(("prompt", "consent"),),
    person=PersonProbe(
        url=f"{_LINEAR}/graphql",
        id=f"{_LINEAR_VIEWER}.id",
        label=f"{_LINEAR_VIEWER}.email",
        name=f"{_LINEAR_VIEWER}.name",
        picture=f"{_LINEAR_VIEWER}.avatarUrl",
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
    scope_writes=("write", "issues:create", "comments:create", "timeSchedule:write"),
    scope_deletes=("admin",),
)


_NOTION = "https://api.notion.com/v1"
_NOTION_OWNER = "bot.owner.user"

notion: Provider = Provider(
    name="notion",
    label="Notion",
    authorize=f"{_NOTION}/oauth/authorize",
    token=f"{_NOTION}/oauth/token",
    rotates=True,
    revoke=Revocation(url=f"{_NOTION}/oauth/revoke", kind="json"),
    api=_NOTION,
    has_scopes=False,
    body="json",
    extra=(("owner", "user"),),
    headers=(("Notion-Version", "2022-06-28"),),
    person=PersonProbe(
        url=f"{_NOTION}/users/me",
        # One person has the same id in all workspaces.
        id=("reply.workspace_id", f"{_NOTION_OWNER}.id"),
        label=(f"{_NOTION_OWNER}.person.email", "reply.workspace_name"),
        name=f"{_NOTION_OWNER}.name",
        picture=f"{_NOTION_OWNER}.avatar_url",
    ),
)
