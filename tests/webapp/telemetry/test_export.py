"""The target of traces: from the environment, set by the application, or none."""

import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.cli import PROJECT

SENDS = """
from opentelemetry import trace
from webapp.telemetry.work import tracer_here
tracer_here(exports=True).start_span("ask url").end()
trace.get_tracer_provider().force_flush()
"""
OWN = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from webapp.telemetry.work import tracer_here
own = TracerProvider()
trace.set_tracer_provider(own)
assert tracer_here(exports=True) is not None
assert trace.get_tracer_provider() is own
"""
NOBODY = """
from webapp.telemetry.work import tracer_here
assert tracer_here(exports=False) is None
"""
LACKS_THE_EXTRA = """
import logging, sys
logging.basicConfig(format="%(message)s: %(why)s")
sys.modules["opentelemetry.exporter.otlp.proto.http.trace_exporter"] = None
from webapp.telemetry.work import tracer_here
assert tracer_here(exports=True) is None
"""


def run(program: str, **environment: str) -> str:
    """Run the program in a new process, because a process can set its tracer provider only once."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": "/usr/bin:/bin", **environment},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_traces_are_sent_to_endpoint_from_environment() -> None:
    came: Queue[tuple[str, bytes]] = Queue()

    class Collecting(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            came.put((self.path, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Collecting) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        run(
            SENDS,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.server_port}",
            OTEL_EXPORTER_OTLP_COMPRESSION="none",
            OTEL_SERVICE_NAME="my tools",
        )
        server.shutdown()
        serving.join()
    path, body = came.get_nowait()
    (sent,) = ExportTraceServiceRequest.FromString(body).resource_spans
    service = {pair.key: pair.value.string_value for pair in sent.resource.attributes}
    assert path == "/v1/traces"
    assert service["service.name"] == "my tools"
    assert [span.name for scope in sent.scope_spans for span in scope.spans] == ["ask url"]


@pytest.mark.parametrize(
    "program", [OWN, NOBODY], ids=["provider of the application", "no provider"]
)
def test_traces_are_sent_to_provider_of_application_or_nowhere(program: str) -> None:
    assert run(program) == ""


def test_missing_otel_extra_is_logged_with_install_command() -> None:
    assert "traces.not_sent" in (output := run(LACKS_THE_EXTRA))
    assert "pip install 'elicit-url[otel]'" in output
