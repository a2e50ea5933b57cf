"""flows/crypto."""
