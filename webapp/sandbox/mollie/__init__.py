"""The sandbox's Mollie: payments, whose webhooks say which one has changed and no more."""
