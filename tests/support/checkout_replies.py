"""Replies of PayPal and Mollie about our checkouts. Replies of Stripe are in `checkouts`."""

from typing import Any

from flows.payments.mollie.gateway import mollie
from flows.payments.paypal.gateway import paypal
from tests.support.gateway_env import ID

MOLLIE_KEY = "test_hidden"
MOLLIE_HOOKS = "https://elicit.example/webhooks/mollie"
MOLLIE_PAGE = "https://www.mollie.com/checkout/select-method/1"
MOLLIE_API = "https://api.mollie.com"
MOLLIE_SELLER = mollie(MOLLIE_KEY, webhook_url=MOLLIE_HOOKS, account="pfl_1")
PAYPAL_PAGE = "https://www.sandbox.paypal.com/checkoutnow?token=ORDER1"
PAYPAL_API = "https://api-m.sandbox.paypal.com"
PAYPAL_TOKEN = {"access_token": "A21-hidden-2", "token_type": "Bearer", "expires_in": 32_400}
PAYPAL_SELLER = paypal("client-1", "hidden-1", is_live=False, account="MERCHANT1")


def mollie_payment(status: str = "open", **changes: Any) -> dict[str, Any]:
    """Return a payment as Mollie's API does."""
    page = {"checkout": {"href": MOLLIE_PAGE, "type": "text/html"}} if status == "open" else {}
    return {
        "resource": "payment",
        "id": "tr_1",
        "mode": "test",
        "createdAt": "2026-01-02T12:00:00+00:00",
        "amount": {"currency": "EUR", "value": "9.00"},
        "description": "Premium report & more",
        "method": None,
        "metadata": {"elicitation": ID},
        "status": status,
        "isCancelable": False,
        "profileId": "pfl_1",
        "_links": {
            "self": {"href": f"{MOLLIE_API}/v2/payments/tr_1", "type": "application/hal+json"},
            **page,
        },
        **changes,
    }


def paypal_order(
    status: str = "PAYER_ACTION_REQUIRED",
    *captures: dict[str, Any],
    refunds: list[dict[str, Any]] | None = None,
    unit: dict[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return an order as PayPal's API does."""
    payments = {"captures": list(captures), "refunds": refunds or []}
    return {
        "id": "ORDER1",
        "intent": "CAPTURE",
        "status": status,
        "purchase_units": [
            {
                "reference_id": ID,
                "custom_id": ID,
                "invoice_id": ID,
                "amount": {"currency_code": "EUR", "value": "9.00"},
                "payee": {"merchant_id": "MERCHANT1"},
                **({"payments": payments} if captures or refunds else {}),
                **(unit or {}),
            }
        ],
        "links": [
            {"rel": "self", "href": f"{PAYPAL_API}/v2/checkout/orders/ORDER1", "method": "GET"},
            {"rel": "payer-action", "href": PAYPAL_PAGE, "method": "GET"},
        ],
        **changes,
    }
