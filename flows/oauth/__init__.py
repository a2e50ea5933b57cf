"""flows/oauth."""
