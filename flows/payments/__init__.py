"""flows/payments."""
