"""A stand-in for the API of W&B on this host: as much as its client needs to send a run.

The client sends GraphQL to /graphql, and the points of a run to /files/.../file_stream, as lines of
JSON from an offset on. It was written against the requests of wandb 0.31.
"""

from __future__ import annotations

import gzip
import http.server
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

API_KEY = "a" * 40


class WandbRun:
    """A run, as the server has stored it; ``history`` are the rows that were logged."""

    def __init__(self, project: str, name: str) -> None:
        self.project, self.name = project, name
        self.fields: dict[str, Any] = {}
        self.lines: dict[str, dict[int, str]] = {}
        self.ends: list[tuple[bool, int]] = []

    @property
    def history(self) -> list[dict[str, Any]]:
        lines = self.lines.get("wandb-history.jsonl", {})
        assert [*sorted(lines)] == [*range(len(lines))], "gaps between the rows"
        return [json.loads(lines[number]) for number in sorted(lines)]

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.fields["config"])
        return {key: each["value"] for key, each in found.items()}


class WandbServer(http.server.ThreadingHTTPServer):
    """Stores runs by their ids."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.runs: dict[str, WandbRun] = {}
        self.requests = b""  # all that was received
        self.keys: set[str] = set()
        self.storing = threading.Lock()

    @property
    def environ(self) -> dict[str, str]:
        """The variables with which the client uses this server."""
        url = f"http://127.0.0.1:{self.server_address[1]}"
        return {"WANDB_BASE_URL": url, "WANDB_API_KEY": API_KEY, "WANDB_ERROR_REPORTING": "false"}

    def answer(self, query: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a query or mutation of GraphQL by its name."""
        named = re.search(r"(?:query|mutation)\s+(\w+)", query)
        kind = named[1] if named else ""
        if kind == "Viewer":
            team = {"id": "U", "entity": "ada", "username": "ada", "email": "", "flags": "{}"}
            return {"viewer": team | {"teams": {"edges": []}}}
        if kind == "RunResumeStatus":
            run = self.runs.get(given["name"])
            model = {"id": "P", "name": given["project"], "entity": {"id": "E", "name": "ada"}}
            return {"model": model | {"bucket": None if run is None else _resume_status(run)}}
        if kind == "UpsertBucket":
            is_new = given["name"] not in self.runs
            run = self.runs.setdefault(given["name"], WandbRun(given["project"], given["name"]))
            run.fields |= {key: value for key, value in given.items() if value is not None}
            project = {"id": "P", "name": run.project, "entity": {"id": "E", "name": "ada"}}
            bucket = _resume_status(run) | {"description": "", "sweepName": None}
            return {"upsertBucket": {"bucket": bucket | {"project": project}, "inserted": is_new}}
        if kind == "CreateRunFiles":
            url = f"http://127.0.0.1:{self.server_address[1]}/upload/"
            files = [{"name": name, "uploadUrl": url + name} for name in given["files"]]
            created = {"runID": given["run"], "uploadHeaders": [], "files": files}
            return {"createRunFiles": created}
        return {}

    def store(self, name: str, sent: Mapping[str, Any]) -> None:
        """Store the lines of files, and the end of the client."""
        run = self.runs[name]
        for file, part in (sent.get("files") or {}).items():
            lines = run.lines.setdefault(file, {})
            lines |= dict(enumerate(part["content"], part["offset"]))
        if sent.get("complete") is not None:
            run.ends.append((sent["complete"], sent.get("exitcode", 0)))


def _resume_status(run: WandbRun) -> dict[str, Any]:
    rows = run.history
    events = run.lines.get("wandb-events.jsonl", {})
    return {
        "id": f"id-{run.name}",
        "name": run.name,
        "displayName": run.fields.get("displayName"),
        "config": run.fields.get("config"),
        "summaryMetrics": run.fields.get("summaryMetrics"),
        "historyLineCount": len(rows),
        "historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]),
        "eventsLineCount": len(events),
        "eventsTail": "[]",
        "logLineCount": 0,
        "tags": run.fields.get("tags"),
        "notes": run.fields.get("notes"),
        "wandbConfig": "{}",
    }


class _Handler(http.server.BaseHTTPRequestHandler):
    server: WandbServer
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        made: dict[str, Any] = {}
        with self.server.storing:
            self.server.requests += body
            self.server.keys.add(self.headers.get("Authorization", ""))
            if self.path == "/graphql":
                asked = json.loads(body)
                made = {"data": self.server.answer(asked["query"], asked.get("variables") or {})}
            elif self.path.endswith("/file_stream"):
                self.server.store(self.path.split("/")[-2], json.loads(body))
        data = json.dumps(made).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = _answer

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving_wandb() -> Iterator[WandbServer]:
    """Run the server in a thread."""
    with WandbServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
