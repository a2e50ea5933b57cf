"""The sandbox's Mollie: payments, whose webhooks contain only the id of the payment."""
