"""The option `--plugin` of the commands that start a server."""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from webapp.settings.parsers import module_and_object
from webapp.settings.settings import Settings


def add_plugins(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plugin",
        metavar="MODULE:OBJECT",
        type=_plugin,
        action="append",
        default=[],
        help="an object whose hooks run when questions are asked and answered; can be repeated; "
        "its hooks run after the hooks of ELICIT_PLUGINS",
    )


def with_plugins(settings: Settings, names: Sequence[str]) -> Settings:
    """Return the settings with these plugins after those of the environment."""
    policies = settings.policies
    return replace(settings, policies=replace(policies, plugins=(*policies.plugins, *names)))


def _plugin(text: str) -> str:
    try:
        return module_and_object(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
