"""PayPal: orders, captures and refunds, and their wire format."""
