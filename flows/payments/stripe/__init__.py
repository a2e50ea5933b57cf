"""Stripe: Checkout Sessions, events and refunds, and their wire format."""
