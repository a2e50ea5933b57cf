"""API keys that people type on this server's page (the kind `api_key`).

Risks: a wrong key is stored, or a person loses an open question because of a typing error or a
provider that is out of order. So the key is tested before it is stored, the question stays open
after any failure, and the page keeps the other typed values. A link cannot be used to try many
keys: each refused key counts as an attempt.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.elicitation.flow import open_attempt, record_failed_start
from flows.elicitation.states import Elicitation, Json
from flows.errors import Failed, InvalidQuestion, NotConfigured
from flows.oauth.api_key import KEY, TENANT, USER, KeyRefused, declared_key, tested, token_of
from flows.oauth.authorization_code import AccountTerms
from flows.oauth.provider import Client, Provider
from flows.oauth.responses import TOKEN_BYTES_AT_MOST
from flows.schema.schema import Fault, Schema, schema_of
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.oauth.code_exchange import CodeExchange, why_not

_USER_AT_MOST = 255
_TENANT_AT_MOST = 300
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TypedKeys:
    elicitations: Elicitations
    outbound: Outbound
    exchange: CodeExchange

    def schema(self, client: Client, terms: AccountTerms) -> Schema[Any]:
        """Return the schema of what the person types."""
        asks_tenant = bool(client.provider.tenants) and terms.tenant is None
        return _form(client.provider, asks_tenant=asks_tenant)

    async def connect(
        self,
        elicitation: Elicitation,
        client: Client,
        terms: AccountTerms,
        typed: Mapping[str, Json],
        *,
        browser: str,
    ) -> Sequence[Fault]:
        """Test the typed key, store its account, and settle the question. Return the faults.

        `browser` is the hash of the browser's cookie. Cancelling the caller does not stop the work.

        Raises:
            Failed: The provider did not answer, or is out of order. The question stays open.
            NotPossible: The question has ended.
            TooManyAttempts: The provider refused too many keys.
        """
        return await self.elicitations.run_to_completion(
            self._connect(elicitation, client, terms, typed, browser=browser)
        )

    async def _connect(
        self,
        elicitation: Elicitation,
        client: Client,
        terms: AccountTerms,
        typed: Mapping[str, Json],
        *,
        browser: str,
    ) -> Sequence[Fault]:
        try:
            token = token_of(client.provider, typed)
        except KeyRefused as refused:
            return [Fault(path=refused.field, message=str(refused))]
        try:
            at = client.for_tenant(terms.tenant or _text(typed.get(TENANT)))
        except InvalidQuestion as error:
            return [Fault(path=TENANT, message=str(error))]
        elicitations = self.elicitations
        opened = await elicitations.change(
            elicitation.id,
            lambda e: open_attempt(e, browser=browser, now=elicitations.clock()),
        )
        assert opened.attempt is not None
        number, about = opened.attempt.number, {"id": opened.id, "provider": terms.provider}
        try:
            grant = await self.outbound.run(tested(at, token, now=elicitations.clock()), to=at)
        except KeyRefused as refused:
            _log.info("account.key_refused", extra=about)
            return [Fault(path=refused.field, message=str(refused))]
        except (Failed, NotConfigured):
            await elicitations.change(
                opened.id, lambda e: record_failed_start(e, number=number, trouble="silent")
            )
            raise
        if not terms.wants(grant.person):
            return [Fault(path=KEY, message=f"{why_not(terms, grant.person)}.")]
        await self.exchange.finish(opened, terms, grant, token_endpoint=None, client_auth="")
        return ()


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) and value else None


def _form(provider: Provider, *, asks_tenant: bool) -> Schema[Any]:
    """Return the schema of what the person types: the tenant, the user name, and the key."""
    declared = declared_key(provider)
    fields: dict[str, Json] = {}
    if asks_tenant:
        title = provider.tenant_label
        fields[TENANT] = {"type": "string", "title": title, "maxLength": _TENANT_AT_MOST}
    if declared.user is not None:
        fields[USER] = {"type": "string", "title": declared.user, "maxLength": _USER_AT_MOST}
    fields[KEY] = {
        "type": "string",
        "title": declared.label,
        "writeOnly": True,
        "maxLength": TOKEN_BYTES_AT_MOST // 2,
    }
    return schema_of({"type": "object", "properties": fields, "required": [*fields]})
