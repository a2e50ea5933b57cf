"""The sandbox's authorization server: one implementation, with the habits of three providers."""
