"""webapp/payments."""
