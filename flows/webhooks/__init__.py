"""flows/webhooks."""
