"""The common parts of the sandbox's payment providers, without anything of a single vendor."""
