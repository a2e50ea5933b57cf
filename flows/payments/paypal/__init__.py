"""PayPal: orders, captures and refunds, and what they look like on the wire."""
