"""Requests to a registry: one connection each, over TLS unless the user chose plain HTTP, and with a login on demand.

A failure is a NetworkError where a retry may help, and an ImageError where it will not.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from bireme.core.errors import ImageError, NetworkError
from bireme.images.credentials import Challenge, Login, parse_challenge
from bireme.images.reference import Reference

TIMEOUT_S = 60.0
Body = Callable[[], Iterator[bytes]]
"""Restarts at each call, as a request may have to be sent twice."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A registry's answer, read to its end."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def reason(self) -> str:
        """The registry's reason for a refusal."""
        try:
            errors = json.loads(self.body)["errors"]
            return "; ".join(f"{e.get('code', '')}: {e.get('message', '')}" for e in errors)
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"status {self.status} {http.client.responses.get(self.status, '')}".strip()


class Transport:
    """Requests to the registry of one repository."""

    def __init__(
        self, reference: Reference, *, login: Login | None = None, is_plain: bool = False, ca: Path | None = None
    ) -> None:
        self._reference, self._login = reference, login
        self._context = None if is_plain else _trust(ca)
        self._authorization = ""

    def ask(self, method: str, url: str, body: Body | None = None, headers: dict[str, str] | None = None) -> Reply:
        """Send a request; on a 401 authenticate and send it again."""
        reply = self._send(method, url, body, headers or {})
        if reply.status != 401:
            return reply
        self._authorization = self._authorize(parse_challenge(reply.headers.get("WWW-Authenticate", "")))
        return self._send(method, url, body, headers or {})

    def refuse(self, reply: Reply, what: str) -> NoReturn:
        """Raise the error for an unexpected answer."""
        if reply.status in (401, 403):
            raise self._denied(reply.reason())
        message = f"{self._reference.host} does not {what}: {reply.reason()}"
        if reply.status >= 500 or reply.status == 429:
            raise NetworkError(message, fix="try again later: layers that are there are not sent again")
        raise ImageError(message, fix="check the name of the image, and whether the registry allows it")

    def _send(self, method: str, url: str, body: Body | None, headers: dict[str, str]) -> Reply:
        parts = urllib.parse.urlsplit(url)
        address = parts.netloc or self._reference.address
        if self._authorization and address == self._reference.address:
            headers = {**headers, "Authorization": self._authorization}
        path = urllib.parse.urlunsplit(("", "", parts.path, parts.query, ""))
        connection = self._connect(address, parts.scheme)
        try:
            connection.request(method, path, body() if body else None, {**headers, "User-Agent": "bireme"})
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read())
        except ssl.SSLCertVerificationError as e:
            fix = "give the registry's own authority with `--ca FILE`"
            raise ImageError(f"{address} cannot prove who it is: {e.verify_message}", fix=fix) from e
        except ssl.SSLError as e:
            fix = "`--plain-http` is for registries without TLS, e.g. on this machine"
            raise ImageError(f"{address} does not speak TLS: {e.reason}", fix=fix) from e
        except (OSError, http.client.HTTPException) as e:
            message = f"cannot talk to the registry {address}: {e or type(e).__name__}"
            raise NetworkError(message, fix="check its name, the network, and whether it runs") from e
        finally:
            connection.close()

    def _connect(self, address: str, scheme: str) -> http.client.HTTPConnection:
        if self._context is None and scheme != "https":
            return http.client.HTTPConnection(address, timeout=TIMEOUT_S)
        if scheme == "http":
            raise ImageError(f"the registry sends us to {address} without encryption", fix="`--plain-http` allows it")
        return http.client.HTTPSConnection(address, timeout=TIMEOUT_S, context=self._context or _trust(None))

    def _authorize(self, challenge: Challenge) -> str:
        self._authorization = ""
        if challenge.scheme == "basic" and self._login is not None:
            return self._login.header()
        realm = challenge.parameters.get("realm", "")
        if challenge.scheme != "bearer" or not realm:
            raise self._denied("it wants a name and a password")
        reply = self._ask_for_token(realm, challenge)
        if reply.status != 200:
            raise self._denied(f"{urllib.parse.urlsplit(realm).netloc} gives no token: {reply.reason()}")
        try:
            answer = json.loads(reply.body)
            return f"Bearer {answer.get('token') or answer['access_token']}"
        except (ValueError, KeyError, AttributeError) as e:
            raise self._denied(f"{urllib.parse.urlsplit(realm).netloc} answers with something else than a token") from e

    def _ask_for_token(self, realm: str, challenge: Challenge) -> Reply:
        scope = challenge.parameters.get("scope", f"repository:{self._reference.repository}:pull,push")
        asked = {"service": challenge.parameters.get("service", ""), "scope": scope}
        login = self._login
        if login is None or not login.refresh:
            headers = {"Authorization": login.header()} if login is not None else {}
            return self._send("GET", f"{realm}?{urllib.parse.urlencode(asked)}", None, headers)
        form = {**asked, "grant_type": "refresh_token", "client_id": "bireme", "refresh_token": login.refresh}
        data = urllib.parse.urlencode(form).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(data))}
        return self._send("POST", realm, lambda: iter([data]), headers)

    def _denied(self, why: str) -> ImageError:
        host, name = self._reference.host, self._reference.repository
        fix = f"`docker login {host}` (or podman's) with an account that may push there, then try again"
        return ImageError(f"{host} does not let us push to {name}", why=why, fix=fix)


def _trust(ca: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context()
        if ca is not None:
            context.load_verify_locations(ca)
        return context
    except (OSError, ssl.SSLError) as e:
        raise ImageError(f"cannot read certificates from {ca}: {e}", fix="`--ca` wants a file in PEM format") from e
