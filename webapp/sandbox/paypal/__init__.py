"""The sandbox's PayPal: orders that are approved and captured, and webhooks with a certificate."""
