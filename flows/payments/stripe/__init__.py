"""Stripe: Checkout Sessions, its events and its refunds, and what they look like on the wire."""
