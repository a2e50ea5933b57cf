"""Tenant hosts and URL templates: a value can lead only to a host that was declared."""

import pytest

from flows.errors import InvalidQuestion
from flows.oauth.declaration import filled, host_pattern_fault, tenant_host

SHOPS = ("*.myshopify.com",)
FORCE = ("https://*.my.salesforce.com", "https://*.sandbox.my.salesforce.com")


@pytest.mark.parametrize(
    "typed", ["acme", "ACME", " acme ", "acme.myshopify.com", "https://acme.myshopify.com/"]
)
def test_every_spelling_of_a_tenant_gives_the_same_host(typed: str) -> None:
    # finding: XO3
    assert tenant_host(typed, SHOPS) == "acme.myshopify.com"


@pytest.mark.parametrize(
    "typed",
    [
        "",
        ".",
        "*",
        "evil.example",
        "evil.example#.myshopify.com",
        "evil.example/.myshopify.com",
        "evil.example?.myshopify.com",
        "evil.example\\.myshopify.com",
        "evil.example%23.myshopify.com",
        "evil.example\n.myshopify.com",
        "evil.example .myshopify.com",
        "evil.example\x00.myshopify.com",
        "user@acme.myshopify.com",
        "acme:pw@evil.example",
        "acme.myshopify.com@evil.example",
        "acme.myshopify.com:444",
        "acme.myshopify.com.",
        "acme..myshopify.com",
        ".myshopify.com",
        "myshopify.com",
        "a.b.myshopify.com",
        "acme.myshopify.com.evil.example",
        "acmemyshopify.com",
        "http://acme.myshopify.com",
        "https://https://acme.myshopify.com",
        "https://acme.myshopify.com/admin",
        "//acme.myshopify.com",
        "-acme",
        "acme-",
        "xn--80ak6aa92e",
        "\u0430cme",
        "acm\uff45",
        "acme\u3002myshopify.com",
        "\u212aacme",
        "acme\u00ad",
        "a" * 64,
        "127.0.0.1",
        "[::1]",
    ],
)
def test_tenant_outside_of_the_pattern_is_refused(typed: str) -> None:
    # finding: XO3
    with pytest.raises(InvalidQuestion, match="address must be like"):
        tenant_host(typed, SHOPS)


@pytest.mark.parametrize(
    "pattern",
    ["*", "*.com", "com", "*.*", "a.*.example.com", "*x.example.com", "https://a.b", "A.b"],
)
def test_too_broad_or_malformed_host_pattern_is_refused(pattern: str) -> None:
    assert host_pattern_fault(pattern) is not None


@pytest.mark.parametrize("pattern", ["*.myshopify.com", "accounts.zoho.eu", "*.*.example.com"])
def test_pattern_of_a_vendor_is_accepted(pattern: str) -> None:
    assert host_pattern_fault(pattern) is None


def test_values_are_filled_into_host_and_path() -> None:
    api = "https://quickbooks.example/v3/company/{realm_id}"
    assert filled(api, {"realm_id": "42"}) == "https://quickbooks.example/v3/company/42"
    assert filled(api, {"realm_id": "../x?y#z"}).endswith("/company/..%2Fx%3Fy%23z")
    assert filled("https://{dc}.api.chimp.example/3.0", {"dc": "us6"}).startswith(
        "https://us6.api."
    )
    at = filled(
        "{instance_url}/services", {"instance_url": "https://a.my.salesforce.com"}, hosts=FORCE
    )
    assert at == "https://a.my.salesforce.com/services"
    assert (
        filled("https://{tenant}/admin", {"tenant": "a.myshopify.com"})
        == "https://a.myshopify.com/admin"
    )


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("https://{x}.api.chimp.example/3.0", "evil.example/"),
        ("https://{x}.api.chimp.example/3.0", "evil.example#"),
        ("https://{x}.api.chimp.example/3.0", "a@evil"),
        ("https://{x}.api.chimp.example/3.0", ""),
        ("https://{x}.api.chimp.example/3.0", "a.b"),
        ("https://quickbooks.example/v3/company/{x}", ".."),
        ("https://quickbooks.example/v3/company/{x}/reports", "."),
        ("https://quickbooks.example/v3/{x}.{x}", ""),
        ("{x}/services", "https://evil.example"),
        ("{x}/services", "https://evil.example#.my.salesforce.com"),
        ("{x}/services", "https://a.my.salesforce.com@evil.example"),
        ("{x}/services", "https://a.my.salesforce.com:444"),
        ("{x}/services", "https://a.my.salesforce.com/path"),
        ("{x}/services", "https://A.my.salesforce.com"),
        ("{x}/services", "https://a.my.salesforce.com."),
        ("{x}/services", "http://a.my.salesforce.com"),
        ("{x}/services", "http://127.0.0.1"),
        ("{x}/services", "//a.my.salesforce.com"),
        ("{x}/services", "https://a.my.salesforce.com\\evil.example"),
        ("{x}/services", ""),
    ],
)
def test_value_that_leads_to_another_host_or_folder_is_refused(template: str, value: str) -> None:
    # finding: XO3
    with pytest.raises(InvalidQuestion):
        filled(template, {"x": value}, hosts=FORCE if template.startswith("{") else ())
    with pytest.raises(InvalidQuestion, match="did not say x"):
        filled(template, {})
