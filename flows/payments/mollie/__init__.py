"""Mollie: payments and refunds.

Its webhooks are unsigned hints, so the payment is always fetched.
"""
