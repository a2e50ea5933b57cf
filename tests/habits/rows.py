"""The habits that public reports name, each with its providers and its declaration."""

from collections.abc import Mapping
from dataclasses import replace

from tests.habits.habit import HERE, ISSUER, METADATA, PERSON, Habit, Known
from tests.support.strict_provider import Habits

TOKEN = "only a token response shows it"
API = "only a request with a token shows it"
CODE = "the provider checks the code before these parameters"
REFRESH = "only a refresh shows it"
OPEN = f'issuer = "{ISSUER}"\napi = "{ISSUER}"\n'
IDENTITY = Habits(
    authorize=f"{ISSUER}/authorize",
    token=f"{ISSUER}/token",
    metadata=METADATA,
    userinfo={"sub": "7", "email": "a@hub.example"},
    optional=frozenset(),
    reply={"id_token": "one.without.nonce"},
)
_WORKSPACE = PERSON.replace('"id"', '["team", "id"]').replace('"email"', '["email", "team"]')

PLAYED: Mapping[str, Habit] = {
    "PKCE is required": Habit(
        at=("airtable", "canva", "vercel", "x"), plays=replace(HERE, pkce="required")
    ),
    "PKCE, or every unknown parameter, is refused": Habit(
        at=("facebook", "instagram", "linkedin", "monday", "tiktok", "typeform"),
        plays=replace(HERE, pkce="refused"),
        declares="pkce = false",
    ),
    "client id and secret by Basic": Habit(
        at=("figma", "quickbooks", "reddit", "spotify", "xero"), plays=replace(HERE, auth="basic")
    ),
    "Basic that is not percent-encoded": Habit(
        at=("Glewlwyd",),
        plays=replace(HERE, auth="basic_raw"),
        declares='client_auth = "basic_raw"',
    ),
    "Basic, and the client id in the body as well": Habit(
        plays=replace(HERE, auth="both"), declares='client_auth = "both"'
    ),
    "client secret in the body": Habit(
        at=("google", "hubspot", "linear", "stripe_connect"),
        plays=replace(HERE, auth="post"),
        declares='client_auth = "post"',
    ),
    "public client without a secret": Habit(
        at=("oidc-provider",),
        plays=replace(HERE, auth="none", pkce="required"),
        declares='client_auth = "none"',
    ),
    "private_key_jwt": Habit(
        at=("Microsoft Entra ID", "oidc-provider"),
        plays=replace(HERE, auth="private_key_jwt"),
        declares='client_auth = "private_key_jwt"',
    ),
    "client_secret_jwt": Habit(
        at=("oidc-provider",),
        plays=replace(HERE, auth="client_secret_jwt"),
        declares='client_auth = "client_secret_jwt"',
    ),
    "token request in JSON": Habit(
        at=("atlassian", "notion"), plays=replace(HERE, body="json"), declares='body = "json"'
    ),
    "token reply as a form": Habit(
        at=("github",),
        plays=replace(HERE, replies="form"),
        declares='replies = "form"',
    ),
    "another name of the client id": Habit(
        at=("tiktok",),
        plays=replace(HERE, auth="post", id_parameter="client_key"),
        declares='client_auth = "post"\nclient_id_parameter = "client_key"',
    ),
    "a parameter that unlocks refresh tokens": Habit(
        at=("dropbox", "google", "reddit", "zoho"),
        plays=replace(HERE, extra={"access_type": "offline", "prompt": "consent"}),
        declares='extra = { access_type = "offline", prompt = "consent" }',
    ),
    "an audience in the authorization request": Habit(
        at=("atlassian", "Auth0"),
        plays=replace(HERE, extra={"audience": "api.hub.example"}),
        declares='extra = { audience = "api.hub.example" }',
    ),
    "further parameters in the token request": Habit(
        at=("shopify", "zendesk", "Withings"),
        plays=replace(HERE, token_extra={"action": "requesttoken", "expiring": "1"}),
        declares='token_extra = { action = "requesttoken", expiring = "1" }',
        without=CODE,
    ),
    "further parameters in a refresh": Habit(
        at=("zendesk", "Withings"),
        plays=replace(HERE, refresh_extra={"action": "requesttoken"}),
        declares='refresh_extra = { action = "requesttoken" }',
        without=REFRESH,
    ),
    "resource indicators (RFC 8707)": Habit(
        at=("oidc-provider",),
        plays=replace(
            HERE,
            extra={"resource": "https://api.hub.example"},
            token_extra={"resource": "https://api.hub.example"},
            refresh_extra={"resource": "https://api.hub.example"},
        ),
        declares='resource = "https://api.hub.example"',
    ),
    "form_post": Habit(
        at=("Apple",),
        plays=replace(HERE, response_mode="form_post"),
        declares='response_mode = "form_post"',
    ),
    "a User-Agent with the operator's name": Habit(
        at=("reddit",),
        plays=replace(HERE, user_agent="web:tools:1.0 (by /u/acme)"),
        declares='user_agent = "web:tools:1.0 (by /u/acme)"',
    ),
    "a header with the version": Habit(
        at=("notion",),
        plays=replace(HERE, headers={"X-Version": "2026-01"}),
        declares='headers = { X-Version = "2026-01" }',
    ),
    "commas between scopes": Habit(
        at=("figma", "linear", "shopify", "slack", "strava", "tiktok", "zoho", "zoom"),
        plays=replace(HERE, separator=",", scopes="read write"),
        declares='scope_separator = ","',
    ),
    "commas between scopes in replies": Habit(
        at=("github", "shopify", "slack", "tiktok"),
        plays=replace(HERE, scopes="read,write"),
        declares='reply_scope_separator = ","',
        without="the account has `missing` scopes, and `account.no_scope_recognized` names it",
    ),
    "scopes in `user_scope`": Habit(
        at=("slack",),
        plays=replace(HERE, scope_parameter="user_scope"),
        declares='scope_parameter = "user_scope"',
    ),
    "no scopes": Habit(
        at=("clickup", "github_app", "intercom", "mailchimp", "miro", "notion", "supabase"),
        plays=replace(HERE, scope_parameter=None),
        declares="has_scopes = false",
    ),
    "the reply names no scopes": Habit(at=("strava",), plays=replace(HERE, scopes="")),
    "the person's token inside a member": Habit(
        at=("slack",),
        plays=replace(HERE, nest="authed_user"),
        declares='token_path = ["authed_user"]',
        without=TOKEN,
    ),
    "another address for a refresh": Habit(
        at=("figma",),
        plays=replace(HERE, refresh="https://hub.example/refresh"),
        declares='refresh = "https://hub.example/refresh"',
        without=REFRESH,
    ),
    "`token_type` null": Habit(plays=replace(HERE, token_type=None)),
    "`token_type` empty": Habit(plays=replace(HERE, token_type="")),
    "`token_type` in small letters": Habit(
        at=("github", "stripe_connect"), plays=replace(HERE, token_type="bearer")
    ),
    "`token_type` is `user` or `bot`": Habit(at=("slack",), plays=replace(HERE, token_type="user")),
    "`token_type` is `api_token`": Habit(
        plays=replace(HERE, token_type="api_token"),
        declares='token_types = ["api_token"]',
        without=TOKEN,
    ),
    "`token_type` is `JWT`": Habit(
        plays=replace(HERE, token_type="JWT"),
        declares='token_types = ["JWT"]',
        without=TOKEN,
    ),
    "another word before the token": Habit(
        at=("mailchimp", "zoho"),
        plays=replace(HERE, bearer="OAuth"),
        declares='token_scheme = "OAuth"',
        without=API,
    ),
    "`error: false` next to a token": Habit(plays=replace(HERE, reply={"error": False})),
    "`error: 0` next to a token": Habit(plays=replace(HERE, reply={"error": 0})),
    '`error: ""` next to a token': Habit(plays=replace(HERE, reply={"error": ""})),
    "no `expires_in`": Habit(at=("clickup", "github", "intercom", "notion", "salesforce")),
    "`expires_in` is 0": Habit(at=("mailchimp",), plays=replace(HERE, reply={"expires_in": 0})),
    "`expires_in` is a text": Habit(plays=replace(HERE, reply={"expires_in": "3600"})),
    "`expires_at` next to `expires_in`": Habit(
        at=("strava",),
        plays=replace(HERE, reply={"expires_at": 1800000000, "expires_in": 21600}),
    ),
    "a number above 2^53 in the reply": Habit(
        at=("figma", "miro"), plays=replace(HERE, reply={"team_id": 3458764513820540929})
    ),
    "an id that is unique within a workspace only": Habit(
        at=("canva", "intercom", "notion", "quickbooks", "salesforce", "slack"),
        plays=replace(HERE, who={"id": 7, "team": "T1", "email": "a@hub.example"}),
        declares=_WORKSPACE,
        without="two workspaces of one person are one account",
    ),
    "the token reply says whose account it is": Habit(
        at=("stripe_connect",),
        plays=replace(
            HERE, person=("GET", "no address"), reply={"owner": {"id": 7, "email": "a@hub.example"}}
        ),
        declares='person = { id = "reply.owner.id", label = "reply.owner.email" }',
        without=API,
    ),
    "the API needs POST to say whose account it is": Habit(
        at=("dropbox", "linear", "monday", "slack"),
        plays=replace(HERE, person=("POST", "https://api.hub.example/me")),
        declares=PERSON.replace(" }", ', post = "{}" }'),
        without=API,
    ),
    "`iss` in the callback": Habit(
        at=("github", "google"),
        plays=replace(HERE, callback={"iss": "https://hub.example"}),
        declares='issuer = "https://hub.example"\nsends_issuer = true',
    ),
    "endpoints by discovery": Habit(
        at=("google", "xero"),
        plays=replace(IDENTITY, optional=frozenset({"nonce"}), reply={}),
        addresses=OPEN,
        person="",
    ),
    "no nonce in the id_token, or the parameter is refused": Habit(
        at=("LinkedIn by discovery",),
        plays=IDENTITY,
        declares="nonce = false",
        addresses=OPEN,
        person="",
    ),
}
KNOWN: Mapping[str, Known] = {
    "a host for each customer": Known(
        at=("shopify", "zendesk", "github_enterprise", "Okta", "ServiceNow"),
        declares='tenants = ["*.shops.example"]',
        result="two hosts are two accounts of one registration; other hosts are refused",
        test="test_two_shops_of_one_registration_are_two_accounts",
    ),
    "a host for each region": Known(
        at=("zoho",),
        declares='tenants = ["accounts.zoho.com", "accounts.zoho.eu"]',
        result="the person types the page of the region; other hosts are refused",
        test="test_hostile_tenant_is_refused_before_the_browser_leaves",
    ),
    "a self-hosted server": Known(
        at=("gitlab",),
        declares="`gitlab(base)` in Python",
        result="all endpoints have the server's own address",
        test="test_self_hosted_gitlab_uses_its_own_address",
    ),
    "a tenant in the path": Known(
        at=("microsoft",),
        declares="`microsoft(tenant)` in Python",
        result="a tenant that is no id or domain is refused at import",
        test="test_invalid_microsoft_tenant_is_refused",
    ),
    "the callback names the company (`realmId`)": Known(
        at=("quickbooks",),
        declares='keep = { realm_id = "callback.realmId" }',
        result="the company is in the API's address and identifies the account",
        test="test_parameter_of_the_callback_is_stored_and_names_the_api",
    ),
    "the callback lacks the company": Known(
        at=("quickbooks",),
        declares='keep = { realm_id = "callback.realmId" }',
        result="no account is connected",
        test="test_callback_without_its_parameter_connects_nothing",
    ),
    "the reply names the API (`instance_url`, `api_domain`)": Known(
        at=("salesforce", "zoho"),
        declares='keep = { instance = "reply.instance_url" }, hosts = ["https://*.api.example"]',
        result="`account.client()` calls that address, if it has a declared host",
        test="test_member_of_the_reply_is_the_api",
    ),
    "the reply leads to another host": Known(
        declares='hosts = ["https://*.api.example"]',
        result="no account is connected, and the token goes nowhere",
        test="test_reply_that_leads_to_another_host_connects_nothing",
    ),
    "errors of a refresh with status 200": Known(
        at=("github", "slack", "zoho"),
        declares='refusals = [{ value = "bad_refresh_token" }]',
        result="an ended refresh token asks the person again, once",
        test="test_built_in_provider_declares_its_refusals_of_ended_tokens",
    ),
    "a non-standard error for a wrong secret": Known(
        at=("github", "slack", "atlassian"),
        declares='refusals = [{ value = "bad_client_secret", means = "client" }]',
        result="the operator is notified, and nobody is asked again",
        test="test_built_in_provider_declares_its_refusals_of_wrong_secret",
    ),
    "a refused refresh with status 403": Known(
        at=("atlassian", "Auth0"),
        result="`invalid_grant` asks the person again, whatever its status is",
        test="test_permanent_refusal_requires_connecting_again",
    ),
    "a refused refresh that no standard names": Known(
        at=("hubspot", "x", "reddit", "facebook", "strava", "zoom", "ServiceNow"),
        result="the person is asked again after a proof: a refused access token, or a second "
        "refusal two minutes later",
        test="test_refused_refresh_and_refused_access_token_lapse_account_immediately",
    ),
    "a refused refresh that is declared": Known(
        at=("hubspot", "zoho"),
        declares='refusals = [{ status = 400, member = "status", value = "BAD_REFRESH_TOKEN" }]',
        result="the person is asked again at once",
        test="test_declared_refusal_lapses_account_without_second_attempt",
    ),
    "`error` is an object": Known(
        at=("Meta",),
        declares='refusals = [{ member = "error.code", value = "190" }]',
        result="members inside others are compared, and numbers too",
        test="test_declared_refusal_reads_numbers_and_members_inside_others",
    ),
    "a web page instead of a reply": Known(
        result="the account stays for an hour, then the person is asked again",
        test="test_web_page_instead_of_token_lapses_account_after_an_hour",
    ),
    "429, 503, `temporarily_unavailable`, `server_error`": Known(
        result="another attempt on the same link, ten at most",
        test="test_question_stays_open_and_next_attempt_connects",
    ),
    "an outage of several days": Known(
        result="no account is lost",
        test="test_account_survives_provider_outage_of_several_days",
    ),
    "a refresh ends the old pair of tokens": Known(
        at=("github_app", "gitlab", "linear", "shopify", "slack", "xero", "zendesk"),
        declares="rotates = true",
        result="one refresh by all processes, stored before it is used",
        test="test_many_due_accounts_are_refreshed_once_each_by_two_processes",
    ),
    "a refresh reply without a refresh token": Known(
        at=("google", "salesforce", "zoho", "dropbox", "figma"),
        result="the old refresh token is used again",
        test="test_old_refresh_token_is_reused_if_reply_has_none",
    ),
    "no refresh token at all": Known(
        at=("facebook", "clickup", "intercom", "linkedin"),
        result="the person is warned before the token ends, and then asked again",
        test="test_account_without_refresh_token_is_warned_of_and_lapses",
    ),
    "an unused refresh token ends": Known(
        at=("atlassian", "google", "xero"),
        declares="refresh_unused_days = 60",
        result="the server refreshes the account in time",
        test="test_unused_refresh_token_is_used_in_time",
    ),
    "`refresh_token_expires_in`": Known(
        at=("github_app", "LinkedIn for partners"),
        result="`account.expiring` once, then the account lapses",
        test="test_fixed_end_is_reported_once_and_then_the_account_lapses",
    ),
    "scopes that the person did not tick": Known(
        at=("google", "strava"),
        result="`account.scopes` has the granted ones, and `account.missing` the others",
        test="test_scope_that_is_never_granted_is_asked_for_once",
    ),
    "a scope is spelled in another way in replies": Known(
        declares='covers = { READ = ["read"] }',
        result="asked once; the log names `covers` and `reply_scope_separator`",
        test="test_reply_without_any_requested_scope_is_logged_with_its_remedy",
    ),
    "replies leave out `openid` or `offline_access`": Known(
        at=("microsoft", "xero", "oauth2-mock-server"),
        declares='unmentioned = ["offline_access"]',
        result="the scope is not missing",
        test="test_scope_omitted_from_replies_is_not_missing",
    ),
    "a scope includes others": Known(
        at=("github", "gitlab"),
        declares='covers = { repo = ["public_repo"] }',
        result="the covered scopes are not asked for",
        test="test_covered_scope_is_not_missing",
    ),
    "a non-standard error if the person declines": Known(
        at=("linkedin",),
        declares='declines = ["user_cancelled_login", "user_cancelled_authorize"]',
        result="the question is denied, as with `access_denied`",
        test="test_declared_error_of_a_person_who_declined_is_a_denial",
    ),
    "`access_denied` because an administrator has to agree": Known(
        at=("microsoft",),
        declares='troubles = { AADSTS90094 = "An administrator has to agree first." }',
        result="the question fails with that sentence",
        test="test_admin_consent_error_raises_failed_instead_of_denied",
    ),
    "offline access only with `prompt=consent`": Known(
        at=("oidc-provider",),
        declares='lasting = { prompt = "consent" }',
        result="the prompt is sent when `offline_access` is requested",
        test="test_offline_access_is_requested_with_consent_prompt",
    ),
    "a person with several accounts there": Known(
        at=("github", "google"),
        declares='switch = { prompt = "select_account" }',
        result="another account can be chosen",
        test="test_choosing_another_account_asks_provider_for_account_selection",
    ),
    "metadata at the OAuth address only (RFC 8414)": Known(
        declares='issuer = "https://login.example"',
        result="connected",
        test="test_account_of_server_without_openid_connect_is_connected",
    ),
    "pushed authorization requests (PAR)": Known(
        at=("oidc-provider",),
        declares='issuer = "https://login.example"',
        result="pushed wherever the metadata has the endpoint",
        test="test_authorization_request_is_pushed_with_client_secret",
    ),
    "DPoP": Known(
        at=("oidc-provider",),
        declares="dpop = true",
        result="tokens are bound to a key of the account; without the line, start and "
        "`elicit doctor` name it",
        test="test_code_token_and_api_request_are_bound_to_key_of_account",
    ),
    "EdDSA and Ed25519": Known(
        at=("oidc-provider",),
        result="signatures are verified",
        test="test_ed25519_signature_is_accepted",
    ),
    "HS256": Known(
        at=("oidc-provider",),
        result="refused: start and `elicit doctor` name it if the metadata says so",
        test="test_id_token_signed_with_secret_is_refused_with_reason",
    ),
    "signed userinfo": Known(
        at=("oidc-provider",),
        result="verified and used",
        test="test_signed_userinfo_is_verified_and_used",
    ),
    "revocation by DELETE with the client id in the path": Known(
        at=("github",),
        declares='revoke = { url = "...", kind = "delete" }',
        result="revoked at the provider",
        test="test_github_token_is_deleted_with_client_credentials",
    ),
    "revocation with the token itself": Known(
        at=("slack", "dropbox"),
        declares='revoke = { url = "...", kind = "bearer" }',
        result="revoked at the provider",
        test="test_slack_revocation_uses_the_access_token_itself",
    ),
    "revocation in JSON": Known(
        at=("notion", "quickbooks"),
        declares='revoke = { url = "...", kind = "json" }',
        result="revoked at the provider",
        test="test_notion_revocation_sends_json_and_version_header",
    ),
    "no revocation": Known(
        at=("microsoft", "atlassian"),
        declares='manage = "https://hub.example/apps"',
        result="the page links to the provider's own page",
        test="test_provider_without_revocation_receives_no_request",
    ),
    "API keys instead of OAuth": Known(
        declares='key = { page = "https://hub.example/keys" }',
        result="the person types the key, which is tested before it is stored",
        test="test_typed_key_is_tested_and_carried_by_account",
    ),
    "user name and password": Known(
        declares='key = { page = "https://hub.example/keys", user = "E-mail" }',
        result="sent as Basic",
        test="test_user_name_and_password_are_sent_as_basic_to_typed_tenant",
    ),
    "client credentials": Known(
        declares="service_account = true",
        result="one token for all callers, and nobody is asked",
        test="test_all_callers_of_two_processes_share_one_token",
    ),
    "token exchange (RFC 8693)": Known(
        declares="exchange = { issuer = ... }",
        result="nobody is asked",
        test="test_token_is_exchanged_once_and_nobody_is_asked",
    ),
    "on behalf of (RFC 7523)": Known(
        at=("Microsoft Entra ID",),
        declares='exchange = { kind = "jwt_bearer", issuer = ... }',
        result="nobody is asked",
        test="test_token_is_redeemed_on_behalf_of_its_person",
    ),
    "ID-JAG": Known(
        declares='exchange = { kind = "id_jag", issuer = ... }',
        result="nobody is asked",
        test="test_assertion_of_the_issuer_is_redeemed_at_the_provider",
    ),
}
