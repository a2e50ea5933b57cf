"""flows/payments/declared."""
