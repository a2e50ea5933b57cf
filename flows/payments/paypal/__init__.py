"""flows/payments/paypal."""
