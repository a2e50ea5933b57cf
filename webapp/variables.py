"""Variables of the environment, as all the settings read them."""

from collections.abc import Mapping


def words(environment: Mapping[str, str], name: str) -> list[str]:
    """What stands there, between commas or spaces."""
    return environment.get(name, "").replace(",", " ").split()
