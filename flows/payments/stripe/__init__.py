"""flows/payments/stripe."""
