"""Two ways in: over HTTP, and inside the process through botocore's events."""

from __future__ import annotations

import io
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from tests.aws.double.wire import Request, Response
from tests.aws.double.world import World


class _Body(io.BytesIO):
    """The little of urllib3's response that botocore reads."""

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        yield self.read()


def _text_headers(headers: Any) -> dict[str, str]:
    return {k.lower(): v.decode() if isinstance(v, bytes) else str(v) for k, v in headers.items()}


def attach(target: Any, world: World) -> None:
    """Answer a client's, a session's or an event system's calls from the world, without a socket."""

    def answer(request: AWSPreparedRequest, **kwargs: Any) -> AWSResponse:
        body = request.body or b""
        if hasattr(body, "read"):
            body = body.read()
        body = body.encode() if isinstance(body, str) else bytes(body)
        response = world.handle(Request(request.method, request.url, _text_headers(request.headers), body))
        return AWSResponse(request.url, response.status, response.headers, _Body(response.body))

    events = getattr(target, "events", None) or getattr(getattr(target, "meta", None), "events", None) or target
    events.register("before-send", answer)


class DoubleServer:
    """The double behind http://127.0.0.1:<port>, for AWS_ENDPOINT_URL. A context manager."""

    def __init__(self, world: World, port: int = 0) -> None:
        handler = type("Handler", (_Handler,), {"world": world})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> DoubleServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    world: World

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            response = self.world.handle(Request(self.command, self.path, _text_headers(self.headers), body))
        except Exception:  # a fault of the double: the client cannot see the traceback, so keep it for the test
            self.world.contract_violations.append(traceback.format_exc())
            response = Response(501, b"the double has a fault; see World.contract_violations")
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(response.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _answer  # noqa: N815 - names of http.server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        return
