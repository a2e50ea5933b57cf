"""Mollie: payments and refunds. Webhooks are unsigned hints: the payment is always fetched."""
