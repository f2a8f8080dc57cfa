"""Arguments are checked by schemas that may be anybody's."""

import http.server
import threading
from typing import Any

import pytest

from dagrpo.rollout.calls.checks import fault_of


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": 5},
        {"properties": 5},
        {"properties": {"x": None}},
        {"patternProperties": {"(": {}}},
        {"$ref": "#/nowhere"},
        {"required": 5},
    ],
)
def test_a_schema_that_is_none_forbids_nothing(schema: dict[str, Any]) -> None:
    assert fault_of({"x": 5}, schema) == ""


def test_nothing_is_fetched_for_a_schema() -> None:
    asked: list[str] = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        fault_of({"x": 5}, {"$ref": f"http://127.0.0.1:{server.server_port}/schema"})
        server.shutdown()
    assert asked == []
