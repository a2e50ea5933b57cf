"""elicit.toml: what an operator can declare, and how mistakes are reported."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.oauth.provider import KnownRefusal, PersonProbe, ProviderKey, Revocation
from flows.providers import PROVIDERS
from webapp.settings.config_file import (
    _KEYS,
    BadDeclaration,
    Declarations,
    read_declarations,
)

WHOLE = """
[providers.acme]
label = "Acme"
authorize = "https://acme.example/authorize"
token = "https://acme.example/token"
issuer = "https://acme.example"
sends_issuer = true
api = "https://api.acme.example/v2"
api_hosts = ["https://api.acme.example", "https://files.acme.example"]
scope_separator = ","
reply_scope_separator = ","
client_auth = "post"
client_id_parameter = "client_key"
pkce = false
nonce = false
response_mode = "form_post"
user_agent = "web:tools:1.0"
token_types = ["api_token"]
token_extra = { resource = "https://api.acme.example" }
refresh_extra = { action = "renew" }
declines = ["user_cancelled_login"]
body = "json"
replies = "form"
token_path = ["authed_user"]
always = ["me"]
account_hint = "login_hint"
extra = { owner = "user", prompt = "consent" }
switch = { prompt = "select_account" }
lasting = { prompt = "consent" }
headers = { Acme-Version = "2" }
refresh = "https://acme.example/refresh"
rotates = true
revoke = { url = "https://acme.example/revoke", kind = "json" }
manage = "https://acme.example/apps"
device = "https://acme.example/device"
scope_parameter = "user_scope"
unmentioned = ["offline_access"]
troubles = { ACME_1_secret = "An administrator has to agree first." }
refusals = [{ status = 400, member = "status", value = "BAD_REFRESH_TOKEN" }]

[providers.acme.person]
post = "{}"
url = "https://api.acme.example/v2/me"
id = "user.id"
label = "user.email"

[providers.acme.scope_words]
me = "See who you are"
"secrets:read" = "Read your secrets"

[providers.acme.covers]
all = ["me", "secrets:read"]
"""
SMALL = '[providers.acme]\nissuer = "https://login.example"\n'
ENDPOINTS = """
[providers.acme]
authorize = "https://acme.example/authorize"
token = "https://acme.example/token"
api = "https://acme.example"
"""


def problems_of(text: str) -> list[str]:
    with pytest.raises(BadDeclaration) as bad:
        read_declarations(text, source="elicit.toml")
    assert all(line.startswith("elicit.toml:") for line in str(bad.value).splitlines())
    return bad.value.problems


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ("scope_seperator", 4),
        ("person = { url = 1 }", 4),
        ('[providers.acme.person]\nlable = "x"', 5),
        ("[sellers.shop]\nkye = 1", 5),
        ("[approvers.finance]\nsubject = 1", 5),
        ("[aprovers.finance]", 4),
        ("rotates = truth", 4),
    ],
)
def test_mistake_is_reported_with_line(wrong: str, line: int) -> None:
    # finding: XA11
    text = f"# {'x' * 20}\n{SMALL}{wrong if '=' in wrong or '[' in wrong else wrong + ' = 1'}\n"
    with pytest.raises(BadDeclaration) as bad:
        read_declarations(text, source="/home/ann/elicit.toml")
    assert f"/home/ann/elicit.toml:{line}: " in str(bad.value), str(bad.value)


@pytest.mark.parametrize(
    ("text", "near"),
    [
        (SMALL + "scope_seperator = ','\n", "scope_separator"),
        (SMALL + "[providers.acme.person]\nlable = 'x'\n", "label"),
        ("[approvers.finance]\nsubject = ['x']\n", "subjects"),
    ],
)
def test_unknown_key_error_suggests_nearest_key(text: str, near: str) -> None:
    # finding: XA12
    assert any(f"Perhaps {near} is meant." in problem for problem in problems_of(text))


def test_every_key_is_read_into_provider() -> None:
    acme = read_declarations(WHOLE, source="elicit.toml").providers["acme"]
    assert (acme.name, acme.label, acme.discovers) == ("acme", "Acme", False)
    assert acme.sends_issuer
    assert acme.api_hosts == ("https://api.acme.example", "https://files.acme.example")
    assert (acme.client_auth, acme.body, acme.replies) == ("post", "json", "form")
    assert acme.extra == (("owner", "user"), ("prompt", "consent"))
    assert acme.token_path == ("authed_user",)
    assert (acme.pkce, acme.nonce, acme.response_mode) == (False, False, "form_post")
    assert (acme.client_id_parameter, acme.user_agent) == ("client_key", "web:tools:1.0")
    assert (acme.token_types, acme.declines) == (("api_token",), ("user_cancelled_login",))
    assert acme.token_extra == (("resource", "https://api.acme.example"),)
    assert acme.refresh_extra == (("action", "renew"),)
    assert acme.person == PersonProbe(
        url="https://api.acme.example/v2/me", id="user.id", label="user.email", post="{}"
    )
    assert acme.switch == (("prompt", "select_account"),)
    assert acme.lasting == (("prompt", "consent"),)
    assert acme.headers == (("Acme-Version", "2"),)
    assert acme.refresh == "https://acme.example/refresh"
    assert acme.rotates
    assert acme.revoke == Revocation(url="https://acme.example/revoke", kind="json")
    text = WHOLE.replace('kind = "json"', 'kind = "github"')
    renamed = read_declarations(text, source="a file").providers["acme"].revoke
    assert renamed == Revocation(url="https://acme.example/revoke", kind="delete")
    assert acme.manage == "https://acme.example/apps"
    assert acme.device == "https://acme.example/device"
    assert acme.scope_parameter == "user_scope"
    assert acme.unmentioned == ("offline_access",)
    assert acme.troubles == {"ACME_1_secret": "An administrator has to agree first."}
    # finding: XO1
    assert acme.refusals == (KnownRefusal(status=400, member="status", value="BAD_REFRESH_TOKEN"),)
    assert acme.has_scopes
    assert acme.scope_words["secrets:read"] == "Read your secrets"
    assert acme.missing(("me",), granted=("all",)) == ()


def test_revoke_with_url_only_is_standard_revocation() -> None:
    text = SMALL + 'revoke = "https://login.example/revoke"\nhas_scopes = false\n'
    acme = read_declarations(text, source="elicit.toml").providers["acme"]
    assert acme.revoke == Revocation(url="https://login.example/revoke")
    assert not acme.has_scopes


def test_every_key_of_declaration_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "providers.md").read_text("utf-8")
    page = page.partition("\n### List of providers\n")[0]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    explained = {word.strip(" `") for row in rows for word in row.split(",")}
    assert explained == set(_KEYS)


def test_issuer_alone_is_sufficient() -> None:
    acme = read_declarations(SMALL, source="elicit.toml").providers["acme"]
    assert acme.discovers
    assert acme.label == "Acme"
    assert acme.always == ("openid",)
    assert acme.api == "https://login.example"


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "[providers]\n"])
def test_an_empty_file_declares_nothing(text: str) -> None:
    assert read_declarations(text, source="elicit.toml") == Declarations()


@pytest.mark.parametrize("name", list(PROVIDERS))
def test_built_in_name_is_refused(name: str) -> None:
    problems = problems_of(f'[providers.{name}]\nissuer = "https://evil.example"\n')
    assert problems == [f"providers.{name}: this name is built in; choose another one."]


@pytest.mark.parametrize(
    "key",
    [
        "client_secret",
        "secret",
        "Client_Secret",
        "password",
        "private_key",
        "access_token",
        "refresh_token",
        "token_value",
        "api_key",
    ],
)
def test_secret_in_file_is_refused_without_repeating_secret(key: str) -> None:
    (problem,) = problems_of(f'{SMALL}{key} = "hunter2"\n')
    assert problem == (
        f"providers.acme.{key}: a secret does not belong in this file; set "
        "ELICIT_ACME_CLIENT_SECRET in the environment instead."
    )


def test_nested_secret_is_refused() -> None:
    problems = problems_of(f'{SMALL}extra = {{ client_secret = "hunter2" }}\n')
    assert any("providers.acme.extra.client_secret" in problem for problem in problems)
    assert "hunter2" not in " ".join(problems)
    assert any("secret" in problem for problem in problems_of('client_secret = "hunter2"\n'))


def test_key_in_place_of_address_is_not_repeated_in_error() -> None:
    text = ENDPOINTS.replace("https://acme.example/token", "ghp_hunter2")
    problems = problems_of(text)
    assert any(problem.startswith("providers.acme.token: ") for problem in problems)
    assert "hunter2" not in " ".join(problems)


def test_client_id_in_file_is_refused() -> None:
    assert problems_of(f'{SMALL}client_id = "abc"\n') == [
        "providers.acme.client_id: not allowed in this file; set ELICIT_ACME_CLIENT_ID."
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[providers.Acme]\n", "providers.Acme: a name has"),
        ('[providers."../x"]\n', "providers.../x: a name has"),
        ("[provider.acme]\n", "provider: unknown"),
        ("providers = 7\n", "providers: it must be a table"),
        ("[[providers]]\n", "providers: it must be a table"),
        ("[providers]\nacme = 7\n", "providers.acme: it must be a table"),
        (
            "[providers.acme]\n",
            "providers.acme.issuer: required, unless authorize and token are set.",
        ),
        (SMALL + 'isuer = "x"\n', "providers.acme.isuer: unknown"),
        (SMALL + "label = 7\n", "providers.acme.label: must be a text."),
        (SMALL + 'sends_issuer = "yes"\n', "providers.acme.sends_issuer: must be true or false."),
        (SMALL + 'always = "openid"\n', "providers.acme.always: must be a list of texts."),
        (SMALL + "extra = { a = 1 }\n", "providers.acme.extra: must be a table of texts."),
        (SMALL + 'covers = { a = "b" }\n', "providers.acme.covers: must be a table of lists"),
        (SMALL + 'body = "xml"\n', "providers.acme.body: it must be form or json."),
        (SMALL + 'always = ["email"]\n', "providers.acme.always: add"),
        (SMALL + 'extra = { state = "x" }\n', "providers.acme.extra: state is set by the server"),
        (SMALL.replace("https", "http"), "providers.acme.issuer: The address must be https"),
        (SMALL + "person = 7\n", "providers.acme.person: must be a table of texts, with"),
        (SMALL + 'person = { id = "x" }\n', "providers.acme.person.label: required."),
        (SMALL + 'person = { name2 = "x" }\n', "providers.acme.person.name2: unknown"),
        (SMALL + "revoke = 7\n", "providers.acme.revoke: must be a text, or a table of texts."),
        (SMALL + "revoke = { url = 7 }\n", "providers.acme.revoke: must be a text, or a table"),
        (SMALL + 'revoke = { kind = "form" }\n', "providers.acme.revoke.url: required."),
        (SMALL + 'revoke = { url2 = "x" }\n', "providers.acme.revoke.url2: unknown"),
        (
            SMALL + 'revoke = { url = "https://x.example", kind = "xml" }\n',
            "providers.acme.revoke: kind must be",
        ),
        # finding: XO1
        (SMALL + "refusals = 7\n", "providers.acme.refusals: must be a list of tables."),
        (SMALL + "refusals = [7]\n", "providers.acme.refusals: must be a list of tables."),
        (SMALL + "refusals = [{ x = 7 }]\n", "providers.acme.refusals.x: unknown; the keys are"),
        (
            SMALL + 'refusals = [{ status = "4" }]\n',
            "providers.acme.refusals.status: must be a whole number.",
        ),
        (SMALL + 'refusals = [{ member = "e" }]\n', "providers.acme.refusals: each entry needs a"),
        (
            SMALL + 'refusals = [{ value = "e", means = "x" }]\n',
            "providers.acme.refusals: means must",
        ),
        (SMALL + 'revoke = "http://x.example"\n', "providers.acme.revoke: The address must be"),
        (SMALL + 'device = "x"\n', "providers.acme.device: "),
        (SMALL + 'switch = { nonce = "x" }\n', "providers.acme.switch: nonce is set by the server"),
        (SMALL + 'headers = { Cookie = "x" }\n', "providers.acme.headers: the server sets"),
        (SMALL + 'headers = { X-Api-Key = "x" }\n', "providers.acme.headers.X-Api-Key: a secret"),
        (SMALL + 'rotates = "yes"\n', "providers.acme.rotates: must be true or false."),
        (ENDPOINTS, "providers.acme.person: required"),
        (ENDPOINTS.replace("api = ", "label = "), "providers.acme.api: required"),
        ("= 1", "it is not valid TOML (at line 1, column 1)."),
        ("a = " + "[" * 100_000, "it is not valid TOML"),
        (f"[providers.acme.extra{'.a' * 3000}]\n", "its tables are nested too deep."),
    ],
)
def test_mistake_is_reported_with_table_and_key(text: str, problem: str) -> None:
    assert any(one.startswith(problem) for one in problems_of(text))


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ("state=x", "state"),
        ("audience=a&code_challenge_method=plain&redirect_uri=https://evil.example", None),
        ("st%61te=x", "state"),
        ("scope", "scope"),
        ("user_scope=all&a=b", "user_scope"),
        ("response_mode=", "response_mode"),
    ],
)
def test_authorize_address_with_parameter_of_flow_is_refused(
    query: str, parameters: str | None
) -> None:
    text = WHOLE.replace("acme.example/authorize", f"acme.example/authorize?{query}")
    parameters = parameters or "code_challenge_method, redirect_uri"
    assert problems_of(text) == [
        f"providers.acme.authorize: the flow sets {parameters} itself; remove it from the query."
    ]


def test_authorize_address_can_have_own_query() -> None:
    text = WHOLE.replace("acme.example/authorize", "acme.example/authorize?audience=a&b")
    acme = read_declarations(text, source="elicit.toml").providers["acme"]
    assert acme.authorize == "https://acme.example/authorize?audience=a&b"


def test_invalid_address_is_reported_once() -> None:
    text = WHOLE.replace("https://acme.example/authorize", "https://[::?state=x")
    (problem,) = problems_of(text)
    assert problem.startswith("providers.acme.authorize: ")


@pytest.mark.parametrize("label", sorted({provider.label for provider in PROVIDERS.values()}))
@pytest.mark.parametrize("written", [str, str.upper, "{} ".format, " ".join])
def test_built_in_label_is_refused(label: str, written: Callable[[str], str]) -> None:
    problems = problems_of(f'{SMALL}label = "{written(label)}"\n')
    assert f"providers.acme.label: {label} is built in; choose another one." in problems


def test_name_whose_default_label_is_built_in_is_refused() -> None:
    problems = problems_of('[providers.git_hub]\nissuer = "https://evil.example"\n')
    assert problems == ["providers.git_hub.label: GitHub is built in; choose another one."]
    text = SMALL + 'label = "GitHub at Acme"\n'
    assert read_declarations(text, source="elicit.toml").providers["acme"].label == "GitHub at Acme"


def test_all_mistakes_are_reported_together() -> None:
    text = (
        '[providers.github]\nissuer = "https://x.example"\n'
        '[providers.one]\nissuer = "http://x.example"\n'
        '[providers.two]\nlabel = 1\nsecret = "s"\n'
    )
    problems = problems_of(text)
    for place in ("github:", "one.issuer:", "two.label:", "two.secret:", "two.issuer:"):
        assert any(problem.startswith(f"providers.{place}") for problem in problems)


def test_invalid_scope_parameter_is_reported_if_address_has_query() -> None:
    text = WHOLE.replace("acme.example/authorize", "acme.example/authorize?x=1")
    text = text.replace('scope_parameter = "user_scope"', 'scope_parameter = ["a"]')
    assert any("scope_parameter" in problem for problem in problems_of(text))


@pytest.mark.parametrize("text", [f"a = {'9' * 6_000}", f"a = [{{ b = -{'1' * 6_000} }}]"])
def test_number_with_thousands_of_digits_is_refused(text: str) -> None:
    # finding: S14
    with pytest.raises(BadDeclaration, match=r"elicit\.toml: it is not valid TOML"):
        read_declarations(text, source="elicit.toml")


TENANT = """
[providers.shop]
tenants = ["*.shops.example"]
tenant_label = "Your shop"
authorize = "https://{tenant}/authorize"
token = "https://{tenant}/token"
api = "{instance}/api"
hosts = ["https://*.api.example"]
keep = { instance = "reply.instance_url" }
person = { url = "https://shop.api.example/me", id = ["tenant", "id"], label = "email" }
api_hosts = ["https://shop.api.example", "{instance}"]
"""


def test_tenants_and_stored_members_are_read() -> None:
    # finding: XO3
    shop = read_declarations(TENANT, source="x").providers["shop"]
    assert (shop.tenants, shop.tenant_label) == (("*.shops.example",), "Your shop")
    assert (shop.hosts, shop.keep) == (
        ("https://*.api.example",),
        {"instance": "reply.instance_url"},
    )
    acme = read_declarations(TENANT + 'tenant = "acme"\n', source="x").providers["shop"]
    assert (acme.tenant, acme.authorize) == (
        "acme.shops.example",
        "https://acme.shops.example/authorize",
    )


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("*.shops.example", "*.example", "tenants: each must be a host"),
        ("*.shops.example", "https://*.shops.example", "tenants: each must be a host"),
        ("https://*.api.example", "https://*.example", "hosts: 'https://*.example' must be"),
        (
            "https://*.api.example",
            "*.api.example",
            "hosts: '*.api.example' must be https:// and a host pattern, such as https://*.",
        ),
        ('hosts = ["https://*.api.example"]', "", "hosts: required"),
        ("{instance}/api", "{other}/api", "api: no value is declared for other"),
        (
            "https://{tenant}/token",
            "https://{instance}/token",
            "token: no value is declared for instance",
        ),
        ('"reply.instance_url"', '""', "keep: each name needs"),
        ('api = "{instance}/api"', 'api = "https://{instance}/api"', "api: two fixed labels"),
        ('api = "{instance}/api"', 'api = "https://x.{instance}.com"', "api: two fixed labels"),
        ('api = "{instance}/api"', 'api = "https://x-{instance}.a.com"', "api: two fixed labels"),
        ("https://{tenant}/authorize", "http://{tenant}/authorize", "authorize: "),
        ("https://{tenant}/authorize", "https://x@{tenant}/authorize", "authorize: "),
        ("person = {", 'tenant = "evil.example#.shops.example"\nperson = {', "The address must be"),
    ],
)
def test_template_that_could_lead_elsewhere_is_refused(
    before: str, after: str, problem: str
) -> None:
    # finding: XO3
    assert before in TENANT
    problems = problems_of(TENANT.replace(before, after))
    assert any(one.startswith(f"providers.shop.{problem}") for one in problems), problems


def test_like_copies_built_in_provider_for_another_registration() -> None:
    # finding: XO3
    text = '[providers.github_staging]\nlike = "github"\nlabel = "GitHub (staging)"\n'
    staging = read_declarations(text, source="x").providers["github_staging"]
    github = PROVIDERS["github"]
    assert (staging.name, staging.label) == ("github_staging", "GitHub (staging)")
    assert (staging.authorize, staging.person) == (github.authorize, github.person)
    text += 'client_auth = "basic"\nswitch = { prompt = "login" }\n'
    changed = read_declarations(text, source="x").providers["github_staging"]
    assert (changed.client_auth, changed.switch) == ("basic", (("prompt", "login"),))
    (problem,) = problems_of('[providers.acme]\nlike = "nothing"\n')
    assert problem.startswith("providers.acme.like: must be one of")


def test_table_replaces_a_provider_of_the_catalogue() -> None:
    text = TENANT.replace("[providers.shop]", '[providers.shopify]\nlabel = "Shopify"')
    assert read_declarations(text, source="x").providers["shopify"].tenants == ("*.shops.example",)
    text = '[providers.acme_desk]\nlike = "zendesk"\ntenant = "acme"\n'
    desk = read_declarations(text, source="x").providers["acme_desk"]
    assert (desk.name, desk.token) == ("acme_desk", "https://acme.zendesk.com/oauth/tokens")


KEYED = """
[providers.desk]
label = "Desk"
api = "https://api.desk.example/v1"
key = { page = "https://desk.example/keys", header = "X-Desk-Key", status = 201 }
person = { url = "https://api.desk.example/v1/me", id = "id", label = "email" }
"""


def test_provider_with_api_keys_needs_no_oauth() -> None:
    desk = read_declarations(KEYED, source="elicit.toml").providers["desk"]
    assert desk.key == ProviderKey(
        page="https://desk.example/keys", header="X-Desk-Key", status=201
    )
    assert not desk.discovers


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("status = 201", 'status = "201"', "providers.desk.key.status: must be a whole number."),
        ("status = 201", "statsu = 201", "providers.desk.key.statsu: unknown"),
        ('page = "https://desk.example/keys", ', "", "providers.desk.key.page: required"),
        ("header =", "query =", "providers.desk.key.query: must be"),
        ('api = "https://api.desk.example/v1"\n', "", "providers.desk.api: required"),
        ("person =", "device = 'https://desk.example/d'\nperson =", "providers.desk.device: leave"),
        ("key = {", "key = 7 #", "providers.desk.key: must be a table of texts"),
    ],
)
def test_mistake_in_key_table_is_reported(before: str, after: str, problem: str) -> None:
    text = KEYED.replace("X-Desk-Key", "X Key" if "query" in after else "X-Desk-Key")
    with pytest.raises(BadDeclaration) as caught:
        read_declarations(text.replace(before, after), source="elicit.toml")
    assert problem in str(caught.value)


CRM = """
[providers.crm]
authorize = "https://crm.example/authorize"
token = "https://crm.example/token"
api = "https://api.crm.example"
person = { url = "https://api.crm.example/me", id = "id", label = "email" }
exchange = { EXCHANGE }
"""


def test_exchange_is_read() -> None:
    # finding: XO9
    about = 'kind = "jwt_bearer", issuer = "https://login.example", extra = { a = "b" }'
    found = read_declarations(CRM.replace("EXCHANGE", about), source="elicit.toml")
    how = found.providers["crm"].exchange
    assert how is not None
    assert (how.kind, how.issuer, how.extra) == (
        "jwt_bearer",
        "https://login.example",
        (("a", "b"),),
    )


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ('kind = "id_jag"', "exchange.issuer: required"),
        ('issuer = "https://login.example", kind = "saml"', "exchange.kind: must be one of"),
        ('issuer = "https://login.example", to = "x"', "exchange.to: unknown"),
        ('issuer = "http://login.example"', "exchange.issuer"),
        (
            'issuer = "https://login.example", extra = { assertion = "x" }',
            "the flow sets assertion",
        ),
        ('issuer = "https://login.example", extra = "x"', "exchange.extra: must be a table"),
    ],
)
def test_wrong_exchange_is_refused(about: str, says: str) -> None:
    with pytest.raises(BadDeclaration, match=says):
        read_declarations(CRM.replace("EXCHANGE", about), source="elicit.toml")
