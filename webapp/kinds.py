"""The kinds of elicitation that this server can carry out, and the flow of each."""

from collections.abc import Mapping

from flows.flow import Flow
from flows.visit import VisitFlow

FLOWS: Mapping[str, Flow] = {"url": VisitFlow()}
