"""flows/payments/mollie."""
