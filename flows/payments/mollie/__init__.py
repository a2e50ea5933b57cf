"""Mollie: payments and refunds; its webhooks are hints, so the payment is always fetched."""
