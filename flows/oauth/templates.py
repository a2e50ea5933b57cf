"""Addresses with a part that is known later: the tenant's host, and members of the token's reply.

Risks: a tenant or a reply leads people, codes or access tokens to a stranger's host:
`evil.example#.myshopify.com`, a user name, a port, a look-alike. So the server never searches a
text for a host. The whole text must consist of ASCII labels and match a pattern of the declaration.
In a pattern, `*` stands for one label, and the end is a domain of the vendor.
"""

import re
from collections.abc import Collection, Mapping
from urllib.parse import quote

from flows.errors import InvalidQuestion
from flows.origin import is_origin, origin_of

PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]{0,31})\}")
# TENANT_ID stands for the tenant in the issuer of a multi-tenant provider, such as Microsoft Entra.
# The metadata of SHARED_TENANT has the issuer with TENANT_ID instead of a tenant.
TENANT_ID, SHARED_TENANT = "{tenantid}", "organizations"
VALUE_AT_MOST = 2048  # characters of a member that is stored
HOST_AT_MOST = 253
_LABEL = r"(?!xn--)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST_PATTERN = re.compile(rf"(?:\*\.)*{_LABEL}(?:\.{_LABEL})+")


def host_pattern_fault(pattern: str) -> str | None:
    """Return why this pattern of hosts is not valid, or None. It can begin with `*` labels."""
    if len(pattern) <= HOST_AT_MOST and _HOST_PATTERN.fullmatch(pattern):
        return None
    return "must be a host, or *. and at least two labels, such as *.example.com."


def tenant_host(typed: str, patterns: Collection[str]) -> str:
    """Return the host of a tenant that a person or a tool named.

    The first label of a pattern is enough, and `https://` may stand before the host.

    Raises:
        InvalidQuestion: The text is not a host that matches a pattern.
    """
    text = typed.strip(" ")
    text = text.lower() if text.isascii() else ""
    host = text.removeprefix("https://").removesuffix("/")
    if re.fullmatch(_LABEL, host):
        host = next((f"{host}{one[1:]}" for one in patterns if one.startswith("*.")), host)
    if len(host) <= HOST_AT_MOST and any(_matches(host, one) for one in patterns):
        return host
    raise InvalidQuestion(f"The address must be like {' or '.join(patterns)}, and nothing else.")


def issuer_of_tenant(template: str, tenant: str) -> str:
    """Return the name of an issuer for one of its tenants."""
    return template.replace(TENANT_ID, tenant)


def placeholders(template: str) -> set[str]:
    return set(PLACEHOLDER.findall(template))


def filled(template: str, values: Mapping[str, str], *, hosts: Collection[str] = ()) -> str:
    """Return the address with its values. `hosts` are the patterns of origins that it may have.

    A value in the host is one label, or the tenant's verified host. If a template begins with a
    value, the value is a whole origin. Other values are percent-encoded, and lead to no parent
    folder.

    Raises:
        InvalidQuestion: A value is missing, or leads to another host.
    """
    if not placeholders(template):
        return template
    start = PLACEHOLDER.match(template)
    host_end = template.find("/", template.find("://") + 3) if start is None else start.end()
    host_end = len(template) if host_end < 0 else host_end

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            raise InvalidQuestion(f"The provider did not say {name}, which its address needs.")
        found = values[name]
        if match.start() >= host_end:
            return quote(found, safe="")
        if start is not None:
            return found.removesuffix("/")
        if name != "tenant" and not re.fullmatch(_LABEL, found):
            raise InvalidQuestion(f"{name} is not a part of a host name.")
        return found

    address = PLACEHOLDER.sub(value, template)
    head = PLACEHOLDER.sub(value, template[:host_end])
    if not is_origin(head) or origin_of(address) != head:
        raise InvalidQuestion("The provider named an address that is not an https origin.")
    if not {".", ".."}.isdisjoint(address.partition("?")[0].split("/")):
        raise InvalidQuestion("The provider named an address that leads to a parent folder.")
    if hosts and not any(_matches(head, one) for one in hosts):
        raise InvalidQuestion(f"{head} is not one of the provider's hosts.")
    return address


def _matches(text: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", _LABEL), text) is not None
