"""An HTTP server on this host that records requests; also a program for a node of a cluster."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.header import decode_header, make_header
from pathlib import Path


class Recorder(http.server.ThreadingHTTPServer):
    """Records each request in a file, a line of JSON each, and answers with ``status``."""

    def __init__(self, record: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.record = record
        self.status = 200
        self.writing = threading.Lock()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"

    @property
    def requests(self) -> list[dict[str, str]]:
        return read_requests(self.record)

    @property
    def texts(self) -> list[str]:
        """The texts of all messages; that of an image sent to ntfy is a header."""
        return [
            str(make_header(decode_header(request["Message"])))
            if "Message" in request
            else request["body"]
            for request in self.requests
        ]


def read_requests(record: Path) -> list[dict[str, str]]:
    lines = record.read_text().splitlines() if record.exists() else []
    return [json.loads(line) for line in lines]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Recorder

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        made = {"path": self.path, "body": body.decode("utf-8", "replace"), **self.headers}
        with self.server.writing, self.server.record.open("a") as file:
            file.write(json.dumps(made) + "\n")
        self.send_response(self.server.status)
        if self.server.status in (301, 302):
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = do_PUT = _answer

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def recording(record: Path) -> Iterator[Recorder]:
    """Run a recorder in a thread."""
    with Recorder(record) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    threading.Thread(
        target=Recorder(Path(sys.argv[1]), int(sys.argv[2])).serve_forever, daemon=True
    ).start()
    sys.stdin.read()  # until whoever started this program ends, or closes its pipe
