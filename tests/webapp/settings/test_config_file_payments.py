"""[sellers.NAME] in elicit.toml and its variables: valid settings are read, errors reported."""

import json
import os
import re
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.payments.declared.declaration import (
    ASKED,
    GIVEN_BACK,
    KNOWN,
    DeclaredAccount,
    ProviderDeclaration,
)
from flows.payments.declared.mapping import (
    DEFAULT_FETCHED,
    DEFAULT_OPENED,
    DEFAULT_WEBHOOK,
    Holding,
    Reading,
)
from flows.payments.receipt import Dispute, RefundStatus
from flows.payments.registry import BUILT_IN, SCHEMES
from flows.payments.session import SessionStatus
from flows.payments.stripe.gateway import STRIPE
from flows.webhooks.signatures import STANDARD_WEBHOOKS, Scheme
from tests.support.settings import problems_in, variables_in
from webapp.settings.config_file import BadDeclaration, read_declarations
from webapp.settings.payment_providers import KEYS, SETTINGS, read_merchant_accounts
from webapp.settings.settings import Settings, read_settings, unknown_names

NEWS = "a table of inquiry, closed, open, lost, appealed, lost again, won, gone or returned"
SMALL = """
[sellers.acme]
api = "https://api.acme.example/v1"
checkout_origins = ["https://pay.acme.example"]
"""
WHOLE = """
[sellers.acme_pay]
label = "Acme Pay"
api = "https://{region}.acme.example/v2"
checkout_origins = ["https://pay.acme.example"]
test_api = "https://test.acme.example/v2"
test_checkout_origins = ["https://pay-test.acme.example"]
headers = { X-Api-Key = "{secret}", Acme-Version = "7" }
needs = ["region", "shop"]
account = "shop"
currencies = ["EUR", "USD"]
unit_digits = 2
text_minor = true
what_at_most = 80
minutes = 90
create = "POST /orders"
create_body = { shop = "{shop}", ref = "{reference}", sum = "{decimal}", tax = 0.5, list = [1] }
idempotency = false
fetch = "GET /orders/{session}"
pace = [5, 60]
close = "PATCH /orders/{session}"
close_body = { status = "void" }
refund = "POST /refunds"
refund_body = { order = "{payment}", sum = "{decimal}", key = "{digest}" }
refund_id = "refund.id"
refund_states = { "refund.state=ok" = "succeeded", "refund.state=wait" = "pending" }
trouble = "error.code"
key_used = ["reused"]
manage = "https://acme.example/orders"
scheme = "stripe"
event_id = "event.id"
event_type = "event.type"
events = ["order.changed"]
settles = false

[sellers.acme_pay.holding]
call = "GET /payments/{payment}"
id = "id"
currency = "currency"
given = "sum.refunded+sum.lost"
left = "sum.left"

[sellers.acme_pay.created]
session = "order.id"
amount = false
live = false
url = "order.pay"

[sellers.acme_pay.fetched]
session = "order.id"
states = { "order.state=done" = "paid", "order.state=new" = "open" }
amount = "order.sum"
unit = "decimal"
live = { "order.test=false" = true, "order.test=true" = false }
account = "order.shop"

[sellers.acme_pay.told]
handle = "event.handle"
charged_back = false

[sellers.acme_pay.news]
"claim.opened" = "open"
"claim.won" = "won"
"claim.lost" = "lost"
"order.refunded" = "returned"
"""
KEY = "sk_hunter2"
SIGNS = "whsec_aHVudGVyMmh1bnRlcjJodW50ZXIy"
OF_ACME = {"ELICIT_ACME_KEY": KEY, "ELICIT_ACME_WEBHOOK_SECRET": SIGNS}
LIVE = {**OF_ACME, "ELICIT_ACME_LIVE": "1"}


def merchant_of(text: str, name: str = "acme") -> ProviderDeclaration:
    return read_declarations(text, source="elicit.toml").sellers[name]


def _scheme(**says: object) -> str:
    """Return a line of TOML that declares a signature scheme for webhooks."""
    keys = {"signature_header": "X-Mac", **says}
    return f"scheme = {{ {', '.join(f'{key} = {json.dumps(one)}' for key, one in keys.items())} }}"


def problems_of(text: str) -> list[str]:
    with pytest.raises(BadDeclaration) as bad:
        read_declarations(text, source="elicit.toml")
    assert all(line.startswith("elicit.toml:") for line in str(bad.value).splitlines())
    return bad.value.problems


# The file.


def test_api_and_checkout_origins_are_sufficient() -> None:
    acme = merchant_of(SMALL)
    assert acme == ProviderDeclaration(
        name="acme",
        label="Acme",
        api="https://api.acme.example/v1",
        checkout_origins=("https://pay.acme.example",),
    )
    assert (acme.scheme, acme.events) == (STANDARD_WEBHOOKS, ("checkout.updated",))
    assert (acme.created, acme.fetched, acme.told) == (
        DEFAULT_OPENED,
        DEFAULT_FETCHED,
        DEFAULT_WEBHOOK,
    )


def test_account_provider_can_have_same_name() -> None:
    declared = read_declarations(
        SMALL + '[providers.acme]\nissuer = "https://login.acme.example"\n', source="elicit.toml"
    )
    assert [*declared.providers] == [*declared.sellers] == ["acme"]


def test_every_key_is_read_into_declaration() -> None:
    assert merchant_of(WHOLE, "acme_pay") == ProviderDeclaration(
        name="acme_pay",
        label="Acme Pay",
        api="https://{region}.acme.example/v2",
        checkout_origins=("https://pay.acme.example",),
        test_api="https://test.acme.example/v2",
        test_checkout_origins=("https://pay-test.acme.example",),
        headers=(("X-Api-Key", "{secret}"), ("Acme-Version", "7")),
        needs=("region", "shop"),
        account="shop",
        currencies=("EUR", "USD"),
        unit_digits=2,
        text_minor=True,
        what_at_most=80,
        life=timedelta(minutes=90),
        create="POST /orders",
        create_body={
            "shop": "{shop}",
            "ref": "{reference}",
            "sum": "{decimal}",
            "tax": 0.5,
            "list": [1],
        },
        idempotency=None,
        created=Reading(
            session="order.id", amount=None, live={}, url="order.pay", closes_at=CLOSES
        ),
        fetch="GET /orders/{session}",
        pace=(timedelta(seconds=5), timedelta(minutes=1)),
        fetched=Reading(
            session="order.id",
            states={"order.state=done": SessionStatus.PAID, "order.state=new": SessionStatus.OPEN},
            amount="order.sum",
            unit="decimal",
            live={"order.test=false": True, "order.test=true": False},
            account="order.shop",
            refunded="refunded",
            charged_back="charged_back",
        ),
        close="PATCH /orders/{session}",
        close_body={"status": "void"},
        refund="POST /refunds",
        refund_body={"order": "{payment}", "sum": "{decimal}", "key": "{digest}"},
        holding=Holding(
            call="GET /payments/{payment}",
            id="id",
            currency="currency",
            given="sum.refunded+sum.lost",
            left="sum.left",
        ),
        refund_id="refund.id",
        refund_states={
            "refund.state=ok": RefundStatus.SUCCEEDED,
            "refund.state=wait": RefundStatus.PENDING,
        },
        trouble="error.code",
        key_used=("reused",),
        manage="https://acme.example/orders",
        scheme=STRIPE,
        event_id="event.id",
        event_type="event.type",
        events=("order.changed",),
        settles=False,
        told=Reading(
            session="data.id",
            handle="event.handle",
            states=DEFAULT_WEBHOOK.states,
            amount="data.amount",
            currency="data.currency",
            reference="data.reference",
            live=DEFAULT_WEBHOOK.live,
            payment="data.payment",
            refunded="data.refunded",
        ),
        news={
            "claim.opened": Dispute.OPEN,
            "claim.won": Dispute.WON,
            "claim.lost": Dispute.LOST,
            "order.refunded": None,
        },
    )


CLOSES = DEFAULT_OPENED.closes_at


def test_a_scheme_can_be_described() -> None:
    line = _scheme(signature_label="v1=", separator=",", time_label="t=", message="{ts}{url}{body}")
    assert merchant_of(SMALL + line).scheme == Scheme(
        name="declared",
        signature_header="x-mac",
        signature_label="v1=",
        separator=",",
        time_label="t=",
        message="{ts}{url}{body}",
    )
    assert merchant_of(SMALL + _scheme(separator=False, encoding="base64")).scheme == Scheme(
        name="declared", signature_header="x-mac", encoding="base64"
    )


def test_file_can_set_every_field_of_declaration() -> None:
    has = {*ProviderDeclaration.__dataclass_fields__} - {"name"}
    assert {"life" if key == "minutes" else key for key in KEYS} == has


def test_complete_example_contains_every_key() -> None:
    top = {line.partition(" ")[0] for line in WHOLE.splitlines()}
    tables = {"created", "fetched", "told", "news", "holding"}
    assert {*KEYS} - tables <= top
    assert all(f"[sellers.acme_pay.{table}]" in WHOLE for table in tables)


@pytest.mark.parametrize(
    "key",
    ["idempotency", "fetch", "close", "refund", "trouble", "manage", "event_id", "account"],
)
def test_false_in_place_of_a_name_means_none(key: str) -> None:
    assert getattr(merchant_of(SMALL + f"{key} = false\n"), key) is None


@pytest.mark.parametrize(
    "key", ["handle", "amount", "currency", "reference", "payment", "refunded", "url", "closes_at"]
)
def test_false_in_table_means_response_has_no_such_field(key: str) -> None:
    acme = merchant_of(SMALL + f"[sellers.acme.fetched]\n{key} = false\n")
    assert getattr(acme.fetched, key) is None
    assert acme.fetched.states == DEFAULT_FETCHED.states


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_built_in_name_is_refused(name: str) -> None:
    assert problems_of(SMALL.replace("acme]", f"{name}]")) == [
        f"sellers.{name}: this name is built in; choose another one."
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sellers = 7\n", ": it must be a table of tables, [sellers.NAME]."),
        ("[[sellers]]\n", ": it must be a table of tables, [sellers.NAME]."),
        ("[sellers]\nacme = 7\n", ".acme: it must be a table, [sellers.acme]."),
        (
            "[sellers.Acme]\n",
            ".Acme: a name has 1 to 32 of a-z, 0-9 and _, and begins with a letter.",
        ),
        (
            '[sellers."../x"]\n',
            ".../x: a name has 1 to 32 of a-z, 0-9 and _, and begins with a letter.",
        ),
    ],
)
def test_value_which_is_no_table_is_reported(text: str, problem: str) -> None:
    assert problems_of(text) == [f"sellers{problem}"]


STATES = "a table of open, pending, paid, failed, closed."
HAS_SECRET = 'must contain "{secret}", the placeholder for the key.'
ORIGIN = "checkout_origins: its value is not an https origin."


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("label = 7", "label: must be a text."),
        ('label = " "', "label: must be a printable name, which people see."),
        (f'label = "{"x" * 41}"', "label: must not be longer than 40 characters."),
        ('needs = "shop"', "needs: must be a list of texts."),
        (
            'needs = ["Shop!"]',
            "needs: its value is reserved or not a valid name; choose another name.",
        ),
        (
            'needs = ["minor"]',
            "needs: its value is reserved or not a valid name; choose another name.",
        ),
        ('needs = ["live"]', "needs: live is a setting of every provider, so leave it out."),
        (
            'needs = ["client_id"]',
            "needs: client_id is a setting of every provider, so leave it out.",
        ),
        ('account = "shop"', "account: must be one of `needs`."),
        (
            'test_api = "http://x.example"',
            "test_api: must be an https address without a slash at its end.",
        ),
        ('test_api = "https://x.example/"', "test_api: must be an https address without"),
        ('test_api = "https://[x"', "test_api: must be an https address without"),
        ('test_checkout_origins = ["https://x.example/pay"]', ORIGIN),
        ('test_checkout_origins = ["hunter2"]', ORIGIN),
        ("unit_digits = 7", "unit_digits: must be from 0 to 6."),
        ("unit_digits = true", "unit_digits: must be a whole number."),
        ("what_at_most = 0", "what_at_most: must be at least 1."),
        ("minutes = 0", "minutes: must be a whole number, 1 to 10080."),
        ("minutes = 10081", "minutes: must be a whole number, 1 to 10080."),
        (f"minutes = 1{'0' * 40}", "minutes: must be a whole number, 1 to 10080."),
        ("minutes = 1.5", "minutes: must be a whole number, 1 to 10080."),
        ("text_minor = 1", "text_minor: must be true or false."),
        ("create = 1979-05-27", "create: must be a text."),
        ('create = "/orders"', 'create: must be a method and a path, such as "POST /checkouts".'),
        ('create = "POST /{session}"', "create: {session} is not allowed here."),
        ("create = false", "create: must be a text."),
        ('create_body = "x"', "create_body: must be a table of JSON values."),
        ("create_body = { a = 1979-05-27 }", "create_body: must be a table of JSON values. Write"),
        ("create_body = { a = [[nan]] }", "create_body: must be a table of JSON values. Write"),
        (f"create_body = {{ a = 1{'0' * 20} }}", "create_body: must be a table of JSON values"),
        ('create_body = { a = "{shop}" }', "create_body: {shop} is not allowed here."),
        ('create_body = { "{shop}" = 1 }', "create_body: {shop} is not allowed here."),
        ('create_body = { a = "{secret}" }', "create_body: {secret} is not allowed here."),
        ('close_body = { a = "{minor}" }', "close_body: {minor} is not allowed here."),
        ('refund_body = { a = "{return_url}" }', "refund_body: {return_url} is not allowed here."),
        ('refund_id = "a b"', "refund_id: its value is not a valid path."),
        ("refund_id = false", "refund_id: must be a text."),
        ('refund_states = { "a=b" = "done" }', "refund_states: must be a table of pending or suc"),
        (
            'refund_states = { "hunter2" = "pending" }',
            "refund_states: its value is not of the form path=value.",
        ),
        ('headers = { X-Key = "hunter2" }', 'headers: one header must contain "{secret}", the'),
        (
            'headers = { Authorization = "Bearer hunter2", X-Key = "{secret}" }',
            f"headers.Authorization: {HAS_SECRET}",
        ),
        (
            'headers = { X-Api-Key = "hunter2", X-Key = "{secret}" }',
            "headers.X-Api-Key: a secret does not belong in this file; set ELICIT_ACME_KEY in the",
        ),
        ('headers = { "a b" = "{secret}" }', "headers: its value is not a valid header."),
        ('headers = { A = "{secret}\\n" }', "headers: its value is not a valid header."),
        ('headers = { A = "{secret} {shop}" }', "headers.A: {shop} is not allowed here."),
        ("headers = { A = 7 }", "headers: must be a table of texts."),
        ('scheme = "hunter2"', "scheme: must be one of github, mollie, "),
        ("scheme = 7", "scheme: must be a text or a table."),
        ("scheme = {}", "scheme.signature_header: required: the name of a header."),
        (_scheme(signature_header="x y"), "scheme.signature_header: required"),
        (_scheme(signature_header=False), "scheme.signature_header: required"),
        (_scheme(encoding="hunter2"), "scheme.encoding: must be hex or base64."),
        (_scheme(message="{ts}.{body}"), "scheme.time_label: required if the message has {ts}"),
        (_scheme(time_label="t="), "scheme.time_label: required if the message has {ts}"),
        (_scheme(message="{id}.{body}"), "scheme.message: {id} is not a valid name here."),
        (_scheme(message="hunter2"), "scheme.message: message must contain {body} once"),
        (_scheme(message="{body}{hunter2}"), "scheme.message: message must contain {body} once"),
        (_scheme(separator=7), "scheme.separator: must be a text."),
        (_scheme(secret="hunter2"), "scheme.secret: unknown; the keys are signature_header, "),
        ("event_type = false", "event_type: must be a text."),
        ('event_type = "sk hunter2"', "event_type: its value is not a valid path."),
        ('news = { a = "hunter2" }', f"news: must be {NEWS}."),
        ("news = { a = false }", f"news: must be {NEWS}."),
        (
            "settles = false\nfetch = false",
            "settles: if the webhook does not settle the payment, set `fetch`.",
        ),
        ("told = 7", "told: must be a table."),
        ("told = { states = false }", f"told.states: must be {STATES}"),
        ('told = { states = { "a=b" = "hunter2" } }', f"told.states: must be {STATES}"),
        (
            'told = { states = { "a" = "paid" } }',
            "told.states: its value is not of the form path=value.",
        ),
        ('told = { live = { "a=b" = "yes" } }', "told.live: must be a table of true or false."),
        ('told = { unit = "euros" }', "told.unit: must be minor or decimal."),
        ("told = { unit = false }", "told.unit: must be minor or decimal."),
        ("told = { session = false }", "told.session: must be a text."),
        ('told = { amount = "a..b" }', "told.amount: its value is not a valid path."),
        ('told = { amount = "a+b" }', "told.amount: its value is not a valid path."),
        ('told = { amuont = "a" }', "told.amuont: unknown; the keys are session, handle, states, "),
        ("holding = 7", "holding.call: required."),
        ('holding = { call = "GET /x" }', "holding.currency: required."),
        (
            'holding = { call = "/x", id = "a", currency = "b", given = "c" }',
            "holding: must be a method and a path,",
        ),
        (
            'holding = { call = "GET /x", hunter = "2" }',
            "holding.hunter: unknown; the keys are call",
        ),
        ('lable = "Acme"', "lable: unknown; the keys are label, api, checkout_origins, test_api, "),
        ('accepted = "ok"', "accepted: unknown; the keys are "),
    ],
)
def test_mistake_is_reported_with_key_and_without_value(line: str, problem: str) -> None:
    found = problems_of(SMALL + line + "\n")
    assert any(one.startswith(f"sellers.acme.{problem}") for one in found), found
    assert "hunter2" not in " ".join(found)


def test_two_mistakes_in_same_key_are_reported_once() -> None:
    found = problems_of(SMALL + 'test_checkout_origins = ["hunter2", "http://x.example"]\n')
    assert found == [f"sellers.acme.{ORIGIN}"]


def test_missing_required_keys_are_reported() -> None:
    assert problems_of("[sellers.acme]\n") == [
        "sellers.acme.api: required.",
        "sellers.acme.checkout_origins: required.",
    ]


@pytest.mark.parametrize("key", ["client_secret", "webhook_secret", "api_key", "password"])
def test_secret_in_file_is_refused_without_repeating_secret(key: str) -> None:
    found = problems_of(f'{SMALL}{key} = "hunter2"\n')
    assert (
        f"sellers.acme.{key}: a secret does not belong in this file; set ELICIT_ACME_KEY in the "
        "environment instead."
    ) in found
    assert "hunter2" not in " ".join(found)


def test_header_named_key_is_allowed_with_placeholder() -> None:
    acme = merchant_of(SMALL + 'headers = { X-Api-Key = "{secret}" }\n')
    assert acme.headers == (("X-Api-Key", "{secret}"),)


def test_all_mistakes_are_reported_together() -> None:
    text = (
        '[sellers.stripe]\napi = "https://x.example"\n'
        '[sellers.one]\napi = 7\nlabel = 7\nminutes = 0\nscheme = "x"\ntold = { unit = "x" }\n'
        '[sellers.two]\napi = "x"\ncheckout_origins = ["y"]\nunit_digits = 9\n'
        "[providers.three]\nlabel = 7\n[others]\n"
    )
    found = problems_of(text)
    places = ("one.api", "one.label", "one.minutes", "one.scheme", "one.told.unit")
    more = ("one.checkout_origins", "two.api", "two.checkout_origins", "two.unit_digits")
    for place in ("sellers.stripe", *(f"sellers.{place}" for place in (*places, *more))):
        assert sum(problem.startswith(f"{place}:") for problem in found) == 1, place
    assert any(problem.startswith("providers.three.label:") for problem in found)
    assert any(problem.startswith("others:") for problem in found)


@pytest.mark.parametrize("place", ["create_body", "told", "news", "headers", "x"])
def test_too_deeply_nested_tables_are_refused(place: str) -> None:
    for text in (f"[sellers.acme.{place}{'.a' * 3000}]", f"{place} = {'[' * 90}{']' * 90}"):
        assert problems_of(f"{SMALL}{text}\n") == ["its tables are nested too deep."]


VALUES: st.SearchStrategy[object] = st.recursive(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(
            (
                "{secret}",
                "{minor}",
                "POST /x/{payment}",
                "https://x.example",
                "a.b",
                "github",
                "paid",
            )
        ),
        st.integers(),
        st.floats(),
        st.booleans(),
        st.dates(),
        st.times(),
        st.datetimes(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(("a=b", "call", "states", "session")), inner, max_size=3),
        st.dictionaries(st.text(max_size=8), inner, max_size=3),
    ),
    max_leaves=8,
)
TABLES: st.SearchStrategy[object] = st.dictionaries(
    st.one_of(st.sampled_from(KEYS), st.text(max_size=8)), VALUES, max_size=6
)


@given(table=st.one_of(TABLES, VALUES), is_whole=st.booleans())
def test_any_toml_value_gives_declaration_or_problems(table: object, is_whole: bool) -> None:
    needed: dict[str, object] = {"api": "https://x.example", "checkout_origins": []}
    if is_whole and isinstance(table, dict):
        table = {**cast("dict[str, object]", table), **needed}
    problems: list[str] = []
    sellers = read_merchant_accounts({"acme": table}, problems)
    assert bool(sellers) != bool(problems)
    assert all(isinstance(one, ProviderDeclaration) for one in sellers.values())


@given(
    value=st.one_of(st.dates(), st.times(), st.datetimes(), st.integers(), st.floats()),
    key=st.sampled_from([key for key in KEYS if not key.endswith("_body")]),
)
def test_value_of_wrong_type_is_reported_with_expected_type(
    value: date | time | datetime | float, key: str
) -> None:
    needed: dict[str, object] = {"api": "https://x.example", "checkout_origins": []}
    problems: list[str] = []
    read_merchant_accounts({"acme": {**needed, key: value}}, problems)
    if not isinstance(value, int):
        assert problems
        assert problems[0].startswith(f"sellers.acme.{key}: must be ")
    assert all(str(value) not in problem for problem in problems if len(str(value)) > 5)


# The variables.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write an operator's configuration, and return its path."""
    file = tmp_path / ".config" / "elicit-url" / "elicit.toml"
    file.parent.mkdir(parents=True)
    file.write_text(SMALL, "utf-8")
    return file


@pytest.fixture
def home(home: dict[str, str], file: Path) -> dict[str, str]:
    return home


def declare(home: dict[str, str], text: str) -> None:
    (Path(home["HOME"]) / ".config" / "elicit-url" / "elicit.toml").write_text(text, "utf-8")


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("what", ["folder", "device", "pipe", "dangling link", "link to itself"])
def test_folder_device_or_broken_link_in_place_of_file_is_reported(
    home: dict[str, str], file: Path, what: str, is_named: bool
) -> None:
    # finding: S14
    file.unlink()
    match what:
        case "folder":
            file.mkdir()
        case "device":
            file.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(file)
        case "link to itself":
            file.symlink_to(file)
        case _:
            file.symlink_to(file.with_name("nowhere"))
    named = {"ELICIT_CONFIG": str(file)} if is_named else {}
    (problem,) = problems_in({**home, **named})
    words = "cannot be read" if "link" in what else "is not a file"
    assert problem.startswith(f"ELICIT_CONFIG: {file} {words}")


def acme_in(settings: Settings) -> DeclaredAccount:
    seller = settings.sellers["acme"]
    assert isinstance(seller, DeclaredAccount)
    return seller


def test_declared_provider_without_key_is_not_set_up(home: dict[str, str]) -> None:
    assert read_settings(home).sellers == {}


def test_file_in_configuration_folder_is_read(home: dict[str, str]) -> None:
    settings = read_settings({**home, **LIVE})
    acme = acme_in(settings)
    assert (acme.name, acme.label, acme.is_live) == ("acme", "Acme", True)
    assert (acme.api, acme.checkout_origins) == (
        "https://api.acme.example/v1",
        ("https://pay.acme.example",),
    )
    assert (acme.secret, acme.webhook_secrets) == (KEY, (SIGNS,))
    assert "hunter2" not in repr(settings)
    assert SIGNS not in repr(settings)


def test_file_named_by_variable_is_read(home: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "other.toml"
    path.write_text(SMALL.replace("acme", "other"), "utf-8")
    other = {name.replace("ACME", "OTHER"): value for name, value in LIVE.items()}
    settings = read_settings({**home, **other, "ELICIT_CONFIG": str(path)})
    assert list(settings.sellers) == ["other"]


def test_problems_of_file_are_reported_as_settings_problems(home: dict[str, str]) -> None:
    declare(home, SMALL + 'label = 7\nheaders = { X-Key = "hunter2" }\n')
    found = problems_in({**home, "ELICIT_MOLLIE_KEY": "x"})
    assert variables_in(found) == [
        "ELICIT_CONFIG",
        "ELICIT_CONFIG",
        "ELICIT_MOLLIE_KEY",
    ]


def test_built_in_providers_come_before_declared_provider(home: dict[str, str]) -> None:
    settings = read_settings({**home, **LIVE, "ELICIT_MOLLIE_KEY": "test_x"})
    assert list(settings.sellers) == ["mollie", "acme"]


@pytest.mark.parametrize("name", ["ELICIT_SQUARE_KEY", "ELICIT_LEMON_SQUEEZY_STORE"])
def test_setting_of_provider_with_an_example_names_the_example(
    home: dict[str, str], name: str
) -> None:
    (problem,) = problems_in({**home, name: "1"})
    assert unknown_names({**home, name: "1"}) == [problem]
    (file,) = re.findall(r"examples/payments/\w+\.toml", problem)
    assert problem.startswith(f"{name}: ")
    assert (PROJECT / file).is_file()


def test_setting_of_removed_provider_says_that_it_was_removed(home: dict[str, str]) -> None:
    (problem,) = problems_in({**home, "ELICIT_ADYEN_MERCHANT": "ShopCOM"})
    assert problem.startswith("ELICIT_ADYEN_MERCHANT: Adyen was removed from this server")


def test_typo_in_setting_of_own_provider_named_like_removed_one_is_reported(
    home: dict[str, str],
) -> None:
    declare(home, SMALL.replace("[sellers.acme]", "[sellers.adyen]"))
    (problem,) = problems_in({**home, "ELICIT_ADYEN_KYE": "1"})
    assert problem.endswith("no setting has this name; perhaps ELICIT_ADYEN_KEY is meant.")


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("KEY", ["WEBHOOK_SECRET"]),
        ("WEBHOOK_SECRET", ["KEY"]),
        ("CHECKOUT_ORIGINS", ["KEY", "WEBHOOK_SECRET"]),
        ("SHOP", ["KEY", "WEBHOOK_SECRET"]),
    ],
)
def test_incomplete_settings_name_missing_variables(
    home: dict[str, str], given: str, missing: list[str]
) -> None:
    declare(home, SMALL + 'test_api = "https://x.example"\nneeds = ["shop"]\n')
    values = {"KEY": KEY, "WEBHOOK_SECRET": SIGNS, "CHECKOUT_ORIGINS": "https://x.example"}
    environment = {f"ELICIT_ACME_{given}": values.get(given, "1")}
    if given != "SHOP":
        environment["ELICIT_ACME_SHOP"] = ""
    found = problems_in({**home, **environment})
    assert found[: len(missing)] == [
        f"ELICIT_ACME_{name}: not set, and ELICIT_ACME_{given} is." for name in missing
    ]


def test_live_setting_alone_is_reported_as_incomplete(home: dict[str, str]) -> None:
    assert problems_in({**home, "ELICIT_ACME_LIVE": "1"}) == [
        "ELICIT_ACME_KEY: not set, and ELICIT_ACME_LIVE is.",
        "ELICIT_ACME_WEBHOOK_SECRET: not set, and ELICIT_ACME_LIVE is.",
    ]


@pytest.mark.parametrize("word", ["yes", "true", "2", "live"])
def test_live_setting_accepts_only_1_and_0(home: dict[str, str], word: str) -> None:
    assert problems_in({**home, **OF_ACME, "ELICIT_ACME_LIVE": word}) == [
        "ELICIT_ACME_LIVE: must be 1 for real money, or 0 for the provider's test mode."
    ]


@pytest.mark.parametrize("word", ["", "0"])
def test_provider_without_test_mode_needs_live_setting(home: dict[str, str], word: str) -> None:
    assert problems_in({**home, **OF_ACME, "ELICIT_ACME_LIVE": word}) == [
        "ELICIT_ACME_LIVE: Acme has no test mode. Set it to 1, for real money."
    ]


@pytest.mark.parametrize("word", ["", "0"])
def test_provider_is_in_test_mode_unless_live_is_set(home: dict[str, str], word: str) -> None:
    declare(
        home,
        SMALL
        + 'test_api = "https://test.acme.example"\n'
        + 'test_checkout_origins = ["https://pay-test.acme.example"]\n',
    )
    acme = acme_in(read_settings({**home, **OF_ACME, "ELICIT_ACME_LIVE": word}))
    assert (acme.is_live, acme.api) == (False, "https://test.acme.example")
    assert acme.checkout_origins == ("https://pay-test.acme.example",)
    live = acme_in(read_settings({**home, **LIVE}))
    assert (live.is_live, live.api) == (True, "https://api.acme.example/v1")


def test_additional_origins_follow_declared_origins(home: dict[str, str]) -> None:
    more = {"ELICIT_ACME_CHECKOUT_ORIGINS": "https://a.example, https://b.example:8443"}
    assert acme_in(read_settings({**home, **LIVE, **more})).checkout_origins == (
        "https://pay.acme.example",
        "https://a.example",
        "https://b.example:8443",
    )


@pytest.mark.parametrize("origin", ["x", "http://x.example", "https://x.example/pay", "https://[x"])
def test_invalid_origin_is_reported(home: dict[str, str], origin: str) -> None:
    more = {"ELICIT_ACME_CHECKOUT_ORIGINS": origin}
    assert problems_in({**home, **LIVE, **more}) == [
        f"ELICIT_ACME_CHECKOUT_ORIGINS: {origin} is not an https origin."
    ]


def test_provider_without_origins_is_refused(home: dict[str, str]) -> None:
    declare(home, SMALL.replace('["https://pay.acme.example"]', "[]"))
    assert problems_in({**home, **LIVE}) == [
        "ELICIT_ACME_CHECKOUT_ORIGINS: required: the origins of Acme's payment pages."
    ]


def test_each_value_in_needs_is_read_from_its_variable(home: dict[str, str]) -> None:
    declare(
        home,
        SMALL
        + 'needs = ["shop", "till"]\naccount = "shop"\n'
        + 'create_body = { shop = "{shop}", till = "{till}" }\n',
    )
    assert problems_in({**home, **LIVE}) == [
        "ELICIT_ACME_SHOP: not set, and Acme needs it.",
        "ELICIT_ACME_TILL: not set, and Acme needs it.",
    ]
    needs = {"ELICIT_ACME_SHOP": "s-1", "ELICIT_ACME_TILL": "t.2"}
    acme = acme_in(read_settings({**home, **LIVE, **needs}))
    assert (acme.own, acme.account) == ({"shop": "s-1", "till": "t.2"}, "s-1")


def test_value_needed_only_in_address_of_other_mode_is_optional(home: dict[str, str]) -> None:
    declare(
        home,
        SMALL.replace("api.acme", "{region}.acme")
        + 'needs = ["region"]\ntest_api = "https://test.acme.example"\n'
        + 'test_checkout_origins = ["https://x.example"]\n',
    )
    assert acme_in(read_settings({**home, **OF_ACME})).api == "https://test.acme.example"
    assert problems_in({**home, **LIVE}) == ["ELICIT_ACME_REGION: not set, and Acme needs it."]
    eu = acme_in(read_settings({**home, **LIVE, "ELICIT_ACME_REGION": "eu"}))
    assert eu.api == "https://eu.acme.example/v1"


def test_value_needed_in_address_and_body_is_required_in_both_modes(
    home: dict[str, str],
) -> None:
    declare(
        home,
        SMALL.replace("api.acme", "{shop}.acme")
        + 'needs = ["shop"]\ntest_api = "https://test.acme.example"\n'
        + 'test_checkout_origins = ["https://x.example"]\ncreate_body = { shop = "{shop}" }\n',
    )
    assert problems_in({**home, **OF_ACME}) == ["ELICIT_ACME_SHOP: not set, and Acme needs it."]


@pytest.mark.parametrize("value", ["a/b", "..", "a b", "hunter2?"])
def test_needed_value_must_be_valid_in_path(home: dict[str, str], value: str) -> None:
    declare(home, SMALL + 'needs = ["shop"]\n')
    (problem,) = problems_in({**home, **LIVE, "ELICIT_ACME_SHOP": value})
    assert problem.startswith("ELICIT_ACME_SHOP: ")


@pytest.mark.parametrize("key", ["sk hunter2", "sk_hunter2\x07", "schlüssel_hunter2"])
def test_impossible_key_is_refused(home: dict[str, str], key: str) -> None:
    assert problems_in({**home, **LIVE, "ELICIT_ACME_KEY": key}) == [
        "ELICIT_ACME_KEY: this is not a key of Acme."
    ]


@pytest.mark.parametrize("secret", ["hunter2!", "whsec_", f"{SIGNS},whsec_hunter2!", "whpk_AAAA"])
def test_invalid_webhook_secret_is_refused_at_startup(home: dict[str, str], secret: str) -> None:
    assert problems_in({**home, **LIVE, "ELICIT_ACME_WEBHOOK_SECRET": secret}) == [
        "ELICIT_ACME_WEBHOOK_SECRET: this is not a signing secret of Acme."
    ]


def test_several_secrets_are_read_during_rotation(home: dict[str, str]) -> None:
    both = {"ELICIT_ACME_WEBHOOK_SECRET": f"{SIGNS}, {SIGNS[:-4]}"}
    assert acme_in(read_settings({**home, **LIVE, **both})).webhook_secrets == (SIGNS, SIGNS[:-4])


# The documentation.


PROJECT = Path(__file__).parents[3]
_PROVIDERS = (PROJECT / "docs" / "how-to" / "providers.md").read_text("utf-8")
DECLARING = _PROVIDERS.partition("\n## Your own payment provider\n")[2]
EXAMPLES = re.findall(r"```toml\n(.*?)```", DECLARING, re.DOTALL)


def test_examples_in_documentation_are_valid_declarations() -> None:
    smallest, other = [read_declarations(text, source="docs").sellers for text in EXAMPLES]
    assert smallest["acme"] == replace(
        merchant_of(SMALL),
        test_api="https://api.test.acme.example/v1",
        test_checkout_origins=("https://pay.test.acme.example",),
        news={"claim.won": Dispute.WON},
    )
    orchard = other["orchard"]
    assert (orchard.label, orchard.needs, orchard.scheme) == ("Orchard Pay", ("shop",), STRIPE)


def test_every_key_is_documented() -> None:
    prose = re.sub(r"```.*?```", "", DECLARING, flags=re.DOTALL)
    words = {word for quoted in re.findall(r"`([^`]+)`", prose) for word in quoted.split(" = ")}
    inner = {*Reading.__dataclass_fields__, *Holding.__dataclass_fields__}
    assert {*KEYS, *inner, "{secret}"} - words == set()
    names = ASKED | KNOWN | GIVEN_BACK
    assert {f"{{{name}}}" for name in names} - words == set()
    assert set(SCHEMES) <= words


def test_the_settings_of_each_provider_are_listed() -> None:
    settings = (PROJECT / "docs" / "reference" / "settings.md").read_text("utf-8")
    for name in SETTINGS - {"client_id", "client_secret"}:
        assert f"`ELICIT_{{NAME}}_{name.upper()}`" in settings
