"""A few requests to the cluster's API server, with verified TLS and the standard library alone.

Enough for the harness and its volume provisioner; the product has a client of its own.
"""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

from bireme.core.errors import NetworkError


class ApiError(NetworkError):
    """The API server said no: `status` is its HTTP code."""

    def __init__(self, what: str, status: int) -> None:
        super().__init__(what)
        self.status = status


class Api:
    """Asks as the cluster's administrator; with `keep` over one connection, made anew after a failure."""

    def __init__(self, pki: Path, port: int, *, keep: bool = False) -> None:
        self._port = port
        self._keep = keep
        self._kept: http.client.HTTPSConnection | None = None
        self._tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")

    def get(self, path: str) -> Any:
        """GET one object or list."""
        return json.loads(self.request("GET", path))

    def is_ready(self) -> bool:
        """Whether the API server says that it is ready."""
        try:
            return self.request("GET", "/readyz") == b"ok"
        except NetworkError:
            return False

    def request(self, method: str, path: str, body: object = None) -> bytes:
        """One request; anything but success is an error."""
        connection, self._kept = self._kept or self._connection(), None
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as e:
            connection.close()
            raise NetworkError(f"the API server at 127.0.0.1:{self._port} does not answer: {e}") from e
        if self._keep:
            self._kept = connection
        else:
            connection.close()
        if response.status >= 300:
            raise ApiError(
                f"{method} {path}: {response.status} {answer[:300].decode(errors='replace')}", response.status
            )
        return answer

    def _connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self._port, timeout=20, context=self._tls)
