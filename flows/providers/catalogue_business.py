"""Declarations from the vendors' documentation: business, money, social networks and media.

No declaration was tested with the vendor's real service. `flows.providers.catalogue` has the
source of each.
"""

from flows.oauth.provider import KnownRefusal, PersonProbe, Provider, Revocation

hubspot: Provider = Provider(
    name="hubspot",
    label="HubSpot",
    authorize="https://app.hubspot.com/oauth/authorize",
    token="https://api.hubapi.com/oauth/v3/token",
    api="https://api.hubapi.com",
    client_auth="post",
    always=("oauth",),
    person=PersonProbe(
        url="https://api.hubapi.com/account-info/v3/details", id="portalId", label="portalId"
    ),
    refusals=(KnownRefusal(status=400, member="status", value="BAD_REFRESH_TOKEN"),),
)
salesforce: Provider = Provider(
    name="salesforce",
    label="Salesforce",
    authorize="https://login.salesforce.com/services/oauth2/authorize",
    token="https://login.salesforce.com/services/oauth2/token",
    revoke=Revocation(url="https://login.salesforce.com/services/oauth2/revoke"),
    api="{instance_url}/services/data",
    api_hosts=("{instance_url}", "https://login.salesforce.com"),
    hosts=("https://*.my.salesforce.com", "https://*.*.my.salesforce.com"),
    keep={"instance_url": "reply.instance_url"},
    client_auth="post",
    always=("id", "refresh_token"),
    person=PersonProbe(
        url="https://login.salesforce.com/services/oauth2/userinfo",
        id=("organization_id", "user_id"),
        label=("email", "reply.instance_url"),
    ),
)
shopify: Provider = Provider(
    name="shopify",
    label="Shopify",
    tenants=("*.myshopify.com",),
    tenant_label="Your shop, such as acme.myshopify.com",
    authorize="https://{tenant}/admin/oauth/authorize",
    token="https://{tenant}/admin/oauth/access_token",
    rotates=True,
    api="https://{tenant}/admin/api",
    scope_separator=",",
    reply_scope_separator=",",
    client_auth="post",
    token_extra=(("expiring", "1"),),
    person=PersonProbe(id="tenant", label="tenant"),
)
quickbooks: Provider = Provider(
    name="quickbooks",
    label="QuickBooks",
    authorize="https://appcenter.intuit.com/connect/oauth2",
    token="https://oauth.platform.intuit.com/oauth2/v1/tokens/bearer",
    revoke=Revocation(url="https://developer.api.intuit.com/v2/oauth2/tokens/revoke", kind="json"),
    api="https://quickbooks.api.intuit.com/v3/company/{realm_id}",
    api_hosts=("https://quickbooks.api.intuit.com", "https://accounts.platform.intuit.com"),
    keep={"realm_id": "callback.realmId"},
    always=("openid", "profile", "email"),
    person=PersonProbe(
        url="https://accounts.platform.intuit.com/v1/openid_connect/userinfo",
        id=("callback.realmId", "sub"),
        label=("email", "callback.realmId"),
    ),
)
xero: Provider = Provider(
    name="xero",
    label="Xero",
    refresh_unused_days=60,
    issuer="https://identity.xero.com",
    discovers=True,
    rotates=True,
    api="https://api.xero.com",
    always=("openid", "profile", "email", "offline_access"),
    unmentioned=("offline_access",),
)
_ZOHO = ("com", "eu", "in", "com.au", "jp", "com.cn")
zoho: Provider = Provider(
    name="zoho",
    label="Zoho",
    tenants=tuple(f"accounts.zoho.{region}" for region in _ZOHO),
    tenant_label="Your Zoho sign-in page, such as accounts.zoho.eu",
    authorize="https://{tenant}/oauth/v2/auth",
    token="https://{tenant}/oauth/v2/token",
    revoke=Revocation(url="https://{tenant}/oauth/v2/token/revoke"),
    api="{api_domain}",
    api_hosts=("{api_domain}", "https://{tenant}"),
    hosts=tuple(
        f"https://{name}.zoho{rest}"
        for region in _ZOHO
        for name, rest in (("www", f"apis.{region}"), ("accounts", f".{region}"))
    ),
    keep={"api_domain": "reply.api_domain"},
    scope_separator=",",
    client_auth="post",
    token_scheme="Zoho-oauthtoken",
    always=("AaaServer.profile.READ",),
    extra=(("access_type", "offline"), ("prompt", "consent")),
    person=PersonProbe(url="https://{tenant}/oauth/user/info", id="ZUID", label="Email"),
    refusals=(KnownRefusal(value="invalid_code"),),
)
_LASTING = (("expires_in", "172800"), ("refresh_token_expires_in", "7776000"))
zendesk: Provider = Provider(
    name="zendesk",
    label="Zendesk",
    tenants=("*.zendesk.com",),
    tenant_label="Your Zendesk, such as acme.zendesk.com",
    authorize="https://{tenant}/oauth/authorizations/new",
    token="https://{tenant}/oauth/tokens",
    rotates=True,
    api="https://{tenant}/api/v2",
    client_auth="post",
    token_extra=_LASTING,
    refresh_extra=_LASTING,
    always=("read",),
    person=PersonProbe(
        url="https://{tenant}/api/v2/users/me.json", id="user.id", label=("user.email", "tenant")
    ),
)
intercom: Provider = Provider(
    name="intercom",
    label="Intercom",
    authorize="https://app.intercom.com/oauth",
    token="https://api.intercom.io/auth/eagle/token",
    api="https://api.intercom.io",
    has_scopes=False,
    client_auth="post",
    person=PersonProbe(
        url="https://api.intercom.io/me", id=("app.id_code", "id"), label=("email", "app.name")
    ),
)
stripe_connect: Provider = Provider(
    name="stripe_connect",
    label="Stripe Connect",
    authorize="https://connect.stripe.com/oauth/authorize",
    token="https://connect.stripe.com/oauth/token",
    api="https://api.stripe.com/v1",
    client_auth="post",
    always=("read_write",),
    keep={"livemode": "reply.livemode"},
    person=PersonProbe(id="reply.stripe_user_id", label="reply.stripe_user_id"),
)
paypal_login: Provider = Provider(
    name="paypal_login",
    label="PayPal",
    authorize="https://www.paypal.com/signin/authorize",
    token="https://api-m.paypal.com/v1/oauth2/token",
    api="https://api-m.paypal.com/v1",
    always=("openid", "profile"),
    person=PersonProbe(
        url="https://api-m.paypal.com/v1/identity/oauth2/userinfo?schema=paypalv1.1",
        id="user_id",
        label="name",
    ),
)
mailchimp: Provider = Provider(
    name="mailchimp",
    label="Mailchimp",
    authorize="https://login.mailchimp.com/oauth2/authorize",
    token="https://login.mailchimp.com/oauth2/token",
    api="https://{dc}.api.mailchimp.com/3.0",
    api_hosts=("https://{dc}.api.mailchimp.com", "https://login.mailchimp.com"),
    keep={"dc": "dc"},
    has_scopes=False,
    client_auth="post",
    token_scheme="OAuth",
    person=PersonProbe(
        url="https://login.mailchimp.com/oauth2/metadata", id="user_id", label="login.email"
    ),
)
x: Provider = Provider(
    name="x",
    label="X",
    authorize="https://x.com/i/oauth2/authorize",
    token="https://api.x.com/2/oauth2/token",
    rotates=True,
    revoke=Revocation(url="https://api.x.com/2/oauth2/revoke"),
    api="https://api.x.com/2",
    always=("users.read", "tweet.read", "offline.access"),
    person=PersonProbe(url="https://api.x.com/2/users/me", id="data.id", label="data.username"),
    refusals=(KnownRefusal(value="invalid_request", description="token was invalid"),),
)
linkedin: Provider = Provider(
    name="linkedin",
    label="LinkedIn",
    authorize="https://www.linkedin.com/oauth/v2/authorization",
    token="https://www.linkedin.com/oauth/v2/accessToken",
    api="https://api.linkedin.com",
    client_auth="post",
    pkce=False,
    reply_scope_separator=",",
    always=("openid", "profile", "email"),
    declines=("user_cancelled_login", "user_cancelled_authorize"),
    person=PersonProbe(url="https://api.linkedin.com/v2/userinfo", id="sub", label="email"),
)
_GRAPH = "https://graph.facebook.com"
facebook: Provider = Provider(
    name="facebook",
    label="Facebook",
    authorize="https://www.facebook.com/v21.0/dialog/oauth",
    token=f"{_GRAPH}/v21.0/oauth/access_token",
    api=f"{_GRAPH}/v21.0",
    client_auth="post",
    pkce=False,
    scope_separator=",",
    always=("public_profile",),
    person=PersonProbe(url=f"{_GRAPH}/v21.0/me?fields=id,name", id="id", label="name"),
    refusals=(KnownRefusal(member="error.code", value="190"),),
)
instagram: Provider = Provider(
    name="instagram",
    label="Instagram",
    authorize="https://www.instagram.com/oauth/authorize",
    token="https://api.instagram.com/oauth/access_token",
    api="https://graph.instagram.com",
    client_auth="post",
    pkce=False,
    scope_separator=",",
    always=("instagram_business_basic",),
    person=PersonProbe(
        url="https://graph.instagram.com/me?fields=id,username", id="id", label="username"
    ),
)
_TIKTOK = "https://open.tiktokapis.com/v2"
tiktok: Provider = Provider(
    name="tiktok",
    label="TikTok",
    authorize="https://www.tiktok.com/v2/auth/authorize/",
    token=f"{_TIKTOK}/oauth/token/",
    rotates=True,
    api=_TIKTOK,
    client_auth="post",
    client_id_parameter="client_key",
    pkce=False,
    scope_separator=",",
    reply_scope_separator=",",
    always=("user.info.basic",),
    person=PersonProbe(
        url=f"{_TIKTOK}/user/info/?fields=open_id,display_name",
        id="data.user.open_id",
        label="data.user.display_name",
    ),
)
reddit: Provider = Provider(
    name="reddit",
    label="Reddit",
    authorize="https://www.reddit.com/api/v1/authorize",
    token="https://www.reddit.com/api/v1/access_token",
    revoke=Revocation(url="https://www.reddit.com/api/v1/revoke_token"),
    api="https://oauth.reddit.com",
    always=("identity",),
    extra=(("duration", "permanent"),),
    user_agent="web:elicit-url:v1",
    person=PersonProbe(url="https://oauth.reddit.com/api/v1/me", id="id", label="name"),
)
spotify: Provider = Provider(
    name="spotify",
    label="Spotify",
    authorize="https://accounts.spotify.com/authorize",
    token="https://accounts.spotify.com/api/token",
    api="https://api.spotify.com/v1",
    person=PersonProbe(url="https://api.spotify.com/v1/me", id="id", label="display_name"),
)
strava: Provider = Provider(
    name="strava",
    label="Strava",
    authorize="https://www.strava.com/oauth/authorize",
    token="https://www.strava.com/api/v3/oauth/token",
    revoke=Revocation(url="https://www.strava.com/oauth/deauthorize", kind="bearer"),
    api="https://www.strava.com/api/v3",
    client_auth="post",
    scope_separator=",",
    always=("read",),
    extra=(("approval_prompt", "auto"),),
    person=PersonProbe(
        url="https://www.strava.com/api/v3/athlete", id="id", label=("firstname", "lastname")
    ),
)
