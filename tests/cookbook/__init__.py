"""The example servers of the cookbook, run with every library, revision and client."""
