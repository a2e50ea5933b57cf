"""The settings of the log, the metrics and the traces."""

import logging
import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from webapp.logs.lines import LEVELS, LogSettings
from webapp.settings.parsers import one_of
from webapp.settings.table import Setting, Values

TOKEN_CHARACTERS_AT_LEAST = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """The settings of the log, the metrics and the traces.

    `metrics` is the token that clients need to read the metrics. If it is empty, the server has no
    metrics.
    """

    log: LogSettings = field(default_factory=LogSettings)
    metrics: str = field(default="", repr=False)
    exports_traces: bool = False


def _token(text: str) -> str:
    if text and (len(text) < TOKEN_CHARACTERS_AT_LEAST or not re.fullmatch(r"[!-~]+", text)):
        raise ValueError(
            f"a token has at least {TOKEN_CHARACTERS_AT_LEAST} characters, without spaces; create "
            "one with: elicit keys new"
        )
    if text and find_spec("prometheus_client") is None:
        raise ValueError("metrics need another package: pip install 'elicit-url[metrics]'")
    return text


LOG = Setting(
    name="ELICIT_LOG",
    parse=one_of("lines", "json"),
    default="lines",
    says="`json`: each line of the log is a JSON object",
)
LOG_LEVEL = Setting(
    name="ELICIT_LOG_LEVEL",
    parse=one_of(*LEVELS),
    default="warning",
    says="`debug`, `info`, `warning` or `error`. With `debug`, repeated lines are all logged",
)


METRICS = Setting(
    name="ELICIT_METRICS",
    parse=_token,
    otherwise="none: `/metrics` does not exist",
    says="the token for `/metrics`, at least 32 characters, from `elicit keys new`: send it as "
    "`Authorization: Bearer`. It gives access to nothing else. Needs `pip install "
    "'elicit-url[metrics]'`",
)
TRACES = Setting(
    name="OTEL_EXPORTER_OTLP_ENDPOINT",
    parse=str,
    otherwise="traces go to the tracer provider of the application, if it sets one",
    says="the address to which traces are sent, by OTLP over HTTP. OpenTelemetry's own settings "
    "apply too (`OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER` and so on). Needs `pip install "
    "'elicit-url[otel]'`",
)
TELEMETRY: tuple[Setting[Any], ...] = (LOG, LOG_LEVEL, METRICS, TRACES)


def read_telemetry(values: Values) -> TelemetrySettings:
    """Return the settings of the environment, and add faults to the values' problems."""
    return TelemetrySettings(
        log=LogSettings(
            is_json=values.read(LOG) == "json",
            level=getattr(logging, values.read(LOG_LEVEL).upper()),
        ),
        metrics=values.read(METRICS),
        exports_traces=bool(values.read(TRACES)),
    )
