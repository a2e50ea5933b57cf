"""Variables of the environment, as all the settings read them."""

from collections.abc import Mapping


def words(environment: Mapping[str, str], name: str) -> list[str]:
    """What stands there, between commas or spaces."""
    return environment.get(name, "").replace(",", " ").split()


def switch(
    environment: Mapping[str, str], name: str, problems: list[str], *, default: bool
) -> bool:
    """1 or 0; anything else is a problem."""
    text = environment.get(name, "").strip()
    if text not in ("", "0", "1"):
        problems.append(f"{name}: it is 1 or 0.")
        return default
    return default if not text else text == "1"
