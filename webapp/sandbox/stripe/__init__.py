"""The sandbox's Stripe: sessions of its checkout, payments, refunds and disputes."""
