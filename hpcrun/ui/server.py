"""The HTTP server of the page: loopback only, every request with the token of the address."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrun.curves import page_part
from hpcrun.errors import HpcrunError, InputError
from hpcrun.ui.board import Board

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

_STATIC = Path(__file__).parent / "static"
# The files that the page loads: of this package, and those that HTML reports share.
_OWN = {"app.js": "text/javascript", "app.css": "text/css"}
_SHARED = {
    "curves.js": "text/javascript",
    "uplot.js": "text/javascript",
    "uplot.css": "text/css",
    "page.css": "text/css",
}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
# Names of this machine that a browser may send; a page of another site that resolves to 127.0.0.1
# sends its own name (DNS rebinding).
_HOSTS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")
_EVENT_INTERVAL_S, _CURVE_INTERVAL_S, _KEEP_ALIVE_S = 0.5, 2.0, 15.0
_MAX_CURVES = 50


class Guard:
    """Refuses requests without the token, for other hosts and from other sites."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refusal = self._check(scope)

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        if refusal is None:
            await self._app(scope, receive, send_with_headers)
            return
        from starlette.responses import PlainTextResponse

        status, text = refusal
        await PlainTextResponse(f"{text}\n", status)(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and text of a refusal; None if the request is permitted."""
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if not _HOSTS.fullmatch(host):
            return 421, "this server answers only for 127.0.0.1 and localhost"
        origin = headers.get(b"origin")
        is_change = scope["method"] not in ("GET", "HEAD")
        if (origin is not None or is_change) and origin != f"http://{host}":
            return 403, "requests from other sites are refused"
        first, *inner = scope["path"].split("/")[1:]
        # The file of --open is another site, whose navigation to the page itself is permitted.
        is_page = inner == [""] and headers.get(b"sec-fetch-dest") == "document"
        sites = ("same-origin", "none", "cross-site") if is_page else ("same-origin", "none")
        if headers.get(b"sec-fetch-site", "none") not in sites:
            return 403, "requests from other sites are refused"
        given = first.encode("utf-8", "replace")
        if not secrets.compare_digest(given, self._token):
            return 404, "open the address that hpcrun ui printed"
        return None


def make_app(board: Board, token: str) -> Guard:
    """Create the application; all its addresses begin with the token."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, StreamingResponse
    from starlette.responses import Response as PlainResponse
    from starlette.routing import Mount, Route

    def respond(find: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Answer with JSON, or with the message of an error."""

        async def answer(request: Request) -> Response:
            try:
                return _JSON(await run_in_threadpool(find, request))
            except HpcrunError as error:
                status = 400 if isinstance(error, InputError) else 503
                return _JSON({"error": error.message, "fix": error.fix or None}, status)

        return answer

    class _JSON(JSONResponse):
        def render(self, content: Any) -> bytes:
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()

    async def page(request: Request) -> Response:
        text = (_STATIC / "index.html").read_text("utf-8")
        return PlainResponse(text, media_type="text/html")

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name in _OWN:
            return PlainResponse((_STATIC / name).read_text("utf-8"), media_type=_OWN[name])
        if name in _SHARED:
            return PlainResponse(page_part(name), media_type=_SHARED[name])
        return PlainResponse("not found\n", 404)

    def curves(request: Request) -> Any:
        keys = request.query_params.getlist("key")
        if not keys or len(keys) > _MAX_CURVES:
            raise InputError(f"{len(keys)} curves: from 1 to {_MAX_CURVES} can be shown at once")
        return board.curves(keys)

    def log(request: Request) -> Any:
        query = request.query_params
        at = query.get("at", "-1")
        return board.log(
            query.get("key", ""),
            query.get("file", ""),
            int(at) if at.lstrip("-").isdecimal() else -1,
            before="before" in query,
            find=query.get("find", ""),
            backward="backward" in query,
        )

    async def events(request: Request) -> Response:
        since = request.query_params.get("since", "0")
        keys = request.query_params.getlist("key")[:_MAX_CURVES]
        stream = _stream(board, int(since) if since.isdecimal() else 0, keys)
        return StreamingResponse(stream, media_type="text/event-stream")

    async def act(request: Request) -> Response:
        try:
            wanted = json.loads(await request.body())
            verb, key = str(wanted["verb"]), str(wanted["key"])
        except (ValueError, KeyError, TypeError):
            return _JSON({"error": "malformed request", "fix": None}, 400)
        return await respond(lambda _: {"message": board.act(verb, key)})(request)  # type: ignore[no-any-return]

    api = [
        Route("/rows", respond(lambda request: board.news(0))),
        Route(
            "/detail", respond(lambda request: board.detail(request.query_params.get("key", "")))
        ),
        Route("/curves", respond(curves)),
        Route("/use", respond(lambda request: board.node_use(request.query_params.get("key", "")))),
        Route("/log", respond(log)),
        Route("/events", events),
    ]
    if board.has_actions:
        api.append(Route("/act", act, methods=["POST"]))
    routes = [Route("/", page), Route("/static/{name}", static), Mount("/api", routes=api)]
    return Guard(Starlette(routes=[Mount(f"/{token}", routes=routes)]), token)


async def _stream(board: Board, since: int, keys: list[str]) -> AsyncIterator[bytes]:
    """Yield server-sent events: "rows" with changed rows, "curve" when a curve has grown."""
    from starlette.concurrency import run_in_threadpool

    trouble: object = None
    silent_s = curve_s = 0.0
    curve_version: int | None = None
    while True:
        board.want()
        event = b""
        found = board.news(since)
        if found["version"] != since or found["trouble"] != trouble:
            since, trouble = found["version"], found["trouble"]
            event = _format_event("rows", found)
        if keys and curve_s <= 0:
            curve_s = _CURVE_INTERVAL_S
            try:
                version = await run_in_threadpool(board.curve_version, keys)
            except HpcrunError:
                version = curve_version or 0
            if curve_version is not None and version != curve_version:
                event += _format_event("curve", {"version": version})
            curve_version = version
        if silent_s >= _KEEP_ALIVE_S:
            event = event or b": alive\n\n"
        if event:
            silent_s = 0.0
            yield event
        await asyncio.sleep(_EVENT_INTERVAL_S)
        silent_s += _EVENT_INTERVAL_S
        curve_s -= _EVENT_INTERVAL_S


def _format_event(name: str, data: Any) -> bytes:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return f"event: {name}\ndata: {text}\n\n".encode()


@contextmanager
def redirecting_file(folder: Path, address: str) -> Iterator[Path]:
    """Write a file, readable only by its owner, that leads a browser to an address.

    A browser is started with the path of the file: other users can read the arguments of processes,
    and the address contains the token.
    """
    folder.mkdir(0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(".html", "page-", folder)  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            shown = html.escape(address)
            file.write(
                f'<!doctype html><meta charset="utf-8"><title>hpcrun</title>'
                f'<meta name="referrer" content="no-referrer">'
                f'<meta http-equiv="refresh" content="0; url={shown}"><a href="{shown}">hpcrun</a>'
            )
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def serve(board: Board, *, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page on 127.0.0.1 until Ctrl-C; ``announce`` receives its address.

    Args:
        port: 0 for any free port.

    Raises:
        InputError: uvicorn or starlette is not installed, or the port is in use.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise InputError(
            f"hpcrun ui needs the packages starlette and uvicorn ({error})",
            fix="pip install 'hpcrun-slurm[ui]'",
        ) from error
    token = secrets.token_urlsafe(24)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)  # before the address is announced
    except OSError as error:
        listener.close()
        raise InputError(
            f"--port {port}: {error.strerror}", fix="without --port, any free port is used"
        ) from error
    config = uvicorn.Config(
        make_app(board, token),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    board.start()
    announce(f"http://127.0.0.1:{listener.getsockname()[1]}/{token}/")
    try:
        uvicorn.Server(config).run([listener])
    finally:
        board.close()
        listener.close()
