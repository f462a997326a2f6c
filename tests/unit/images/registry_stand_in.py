"""A registry in a thread, for what a real one does not do on demand: breaking off, forgetting, asking for tokens."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bireme.images.layers import digest_of


@dataclass
class State:
    """What the registry holds, and how it is to behave."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    half: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    scopes: list[str] = field(default_factory=list)
    break_after: list[int] = field(default_factory=list)
    """For each PATCH to come: bytes after which the connection is cut."""
    forgets: bool = False
    login: str = ""
    uses_tokens: bool = False
    status: int = 0
    """Answer everything with this."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *args: Any) -> None:
        pass

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_any(self) -> None:
        state, url = self.state, urlsplit(self.path)
        state.requests.append(f"{self.command} {url.path}")
        if state.status:
            self.reply(state.status, b'{"errors":[{"code":"TOOBUSY","message":"later"}]}')
        elif url.path == "/token":
            self.give_token(parse_qs(url.query))
        elif not self.is_let_in():
            self.challenge()
        else:
            getattr(self, f"on_{self.command.lower()}")(url.path, parse_qs(url.query))

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = handle_any  # noqa: N815 - http.server's names

    def is_let_in(self) -> bool:
        if not self.state.login:
            return True
        given = self.headers.get("Authorization", "")
        basic = "Basic " + base64.b64encode(self.state.login.encode()).decode()
        return given == ("Bearer good" if self.state.uses_tokens else basic)

    def challenge(self) -> None:
        realm = f"http://{self.headers['Host']}/token"
        header = (
            f'Bearer realm="{realm}",service="stand-in",scope="repository:ml/x:push"'
            if self.state.uses_tokens
            else 'Basic realm="x"'
        )
        self.reply(401, b'{"errors":[{"code":"UNAUTHORIZED","message":"who are you"}]}', WWW_Authenticate=header)

    def give_token(self, query: dict[str, list[str]]) -> None:
        self.state.scopes += query["scope"]
        basic = "Basic " + base64.b64encode(self.state.login.encode()).decode()
        is_known = self.headers.get("Authorization") == basic
        self.reply(200 if is_known else 401, b'{"token":"good"}' if is_known else b"")

    def on_head(self, path: str, query: dict[str, list[str]]) -> None:
        self.reply(200 if path.rpartition("/")[2] in self.state.blobs else 404)

    def on_post(self, path: str, query: dict[str, list[str]]) -> None:
        name = f"upload-{len(self.state.half)}"
        self.state.half[name] = b""
        self.reply(202, Location=f"{path}{name}?state=1")

    def on_get(self, path: str, query: dict[str, list[str]]) -> None:
        name = path.rpartition("/")[2]
        if self.state.forgets:
            self.reply(404)
        else:
            kept = len(self.state.half[name])
            self.reply(204, Location=f"{path}?state=2", Range=f"0-{max(0, kept - 1)}")

    def on_patch(self, path: str, query: dict[str, list[str]]) -> None:
        name, length = path.rpartition("/")[2], int(self.headers["Content-Length"])
        begin = int(self.headers["Content-Range"].partition("-")[0])
        if begin != len(self.state.half[name]):
            self.reply(416)
            return
        cut = self.state.break_after.pop(0) if self.state.break_after else None
        self.state.half[name] += self.rfile.read(length if cut is None else cut)
        if cut is not None:
            self.close_connection = True
            self.connection.close()
            return
        self.reply(202, Location=f"{path}?state=3")

    def on_put(self, path: str, query: dict[str, list[str]]) -> None:
        name = path.rpartition("/")[2]
        if "/manifests/" in path:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            self.state.manifests[name] = data
            self.reply(201, Docker_Content_Digest=digest_of(data))
            return
        data, (digest,) = self.state.half[name], query["digest"]
        if digest_of(data) != digest:
            self.reply(400, json.dumps({"errors": [{"code": "DIGEST_INVALID", "message": "torn"}]}).encode())
            return
        self.state.blobs[digest] = data
        self.reply(201)


@contextmanager
def registry(**behaviour: Any) -> Iterator[tuple[str, State]]:
    """Lend a registry's address and what it holds."""
    state = State(**behaviour)
    handler = type("Bound", (Handler,), {"state": state})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", state
        finally:
            server.shutdown()
            thread.join()
