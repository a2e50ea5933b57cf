"""The sandbox's Stripe: checkout sessions, payments, refunds and disputes."""
