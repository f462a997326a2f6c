"""Push an image to a registry by the OCI distribution protocol.

Blobs first, the manifest last, so an image appears when it is complete. A blob that the registry has is skipped. An
upload that breaks off resumes at the offset that the registry reports, or from 0 with registries that do not keep a
partial blob. The registry checks each against its digest. Requests go over TLS unless the user chose plain HTTP. A
failure is a NetworkError where a retry may help, and an ImageError where it will not.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bireme.core.errors import ImageError, NetworkError, UsageError
from bireme.images.archive import MANIFEST, Image
from bireme.images.credentials import RegistryLogin
from bireme.images.layers import digest_of

OnProgress = Callable[[int, int], None]
"""Gets the bytes that are done, and all bytes."""
ATTEMPTS = 4
TIMEOUT_S = 60.0
_HUB = "docker.io"
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_HOST = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::\d{1,5})?")
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class Reference:
    """The place of an image in a registry."""

    host: str
    repository: str
    tag: str

    @property
    def address(self) -> str:
        """The host to connect to; Docker Hub's registry has another host than its name."""
        return "registry-1.docker.io" if self.host == _HUB else self.host

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}:{self.tag}"


def parse_reference(text: str) -> Reference:
    """Parse a name as docker does: the default registry is Docker Hub, the default tag `latest`."""
    first, slash, rest = text.partition("/")
    has_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    host, path = (first, rest) if has_host else (_HUB, text)
    repository, colon, tag = path.partition(":")
    if host == _HUB and "/" not in repository:
        repository = f"library/{repository}"
    tag = tag if colon else "latest"
    if not (_HOST.fullmatch(host) and _REPOSITORY.fullmatch(repository) and _TAG.fullmatch(tag)):
        why = "a name is lower case: host[:port]/path/name:tag"
        raise UsageError(f"`{text}` is not the name of an image", why=why, fix="e.g. registry.example/ml/bireme:1")
    return Reference(host, repository, tag)


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that a registry keeps under their digest, given from any offset on."""

    digest: str
    nbytes: int
    blocks: Callable[[int], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request; `blocks` restarts at each call, as a request may have to be sent twice."""

    blocks: Callable[[], Iterator[bytes]]
    nbytes: int
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a push; bytes that the registry had already were skipped."""

    digest: str
    sent: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Reply:
    """A registry's answer, read to its end."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def reason(self) -> str:
        try:
            errors = json.loads(self.body)["errors"]
            return "; ".join(f"{e.get('code', '')}: {e.get('message', '')}" for e in errors)
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"status {self.status} {http.client.responses.get(self.status, '')}".strip()


class Registry:
    """One repository of a registry, as the target of pushes."""

    def __init__(
        self,
        reference: Reference,
        *,
        login: RegistryLogin | None = None,
        is_plain: bool = False,
        ca: Path | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._reference, self._login, self._pause = reference, login, pause
        self._context = None if is_plain else _trust(ca)
        self._authorization = ""

    def push(self, image: Image, on_progress: OnProgress = lambda done, total: None) -> Pushed:
        """Send what the registry lacks of an image, and give it its tag."""
        blobs = {layer.digest: Blob(layer.digest, layer.nbytes, layer.blocks) for layer in image.layers}
        config = digest_of(image.config)
        blobs[config] = Blob(config, len(image.config), lambda start: iter([image.config[start:]]))
        total = sum(blob.nbytes for blob in blobs.values())
        done = sent = 0

        def advance(part: int) -> None:
            on_progress(done + part, total)

        for blob in blobs.values():
            reply = self._ask("HEAD", f"blobs/{blob.digest}", (200, 404, *_REDIRECTS), f"say if it has {blob.digest}")
            if reply.status == 404:
                self._upload(blob, advance)
                sent += blob.nbytes
            done += blob.nbytes
            advance(0)
        kind = json.loads(image.manifest).get("mediaType", MANIFEST)
        manifest = Body(lambda: iter([image.manifest]), len(image.manifest), {"Content-Type": kind})
        reply = self._ask("PUT", f"manifests/{self._reference.tag}", (201,), "take the manifest", manifest)
        digest = reply.headers.get("Docker-Content-Digest", image.digest)
        if digest != image.digest:
            raise ImageError(f"the registry names the image {digest} instead of {image.digest}", why="it changed it")
        return Pushed(image.digest, sent, total - sent)

    def _upload(self, blob: Blob, on_progress: Callable[[int], None]) -> None:
        place = ""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                place, start = self._resume(place) if place else self._begin()
                if start < blob.nbytes:
                    place = self._send_from(place, start, blob, on_progress)
                mark = "&" if "?" in place else "?"
                url = f"{place}{mark}digest={urllib.parse.quote(blob.digest)}"
                self._ask("PUT", url, (201,), f"accept {blob.digest}")
                return
            except NetworkError:  # an ImageError would come again
                if attempt == ATTEMPTS:
                    raise
                self._pause(2.0 ** (attempt - 1))

    def _begin(self) -> tuple[str, int]:
        return self._location(self._ask("POST", "blobs/uploads/", (202,), "begin an upload")), 0

    def _resume(self, place: str) -> tuple[str, int]:
        reply = self._ask("GET", place, None, "")
        last = reply.headers.get("Range", "").rpartition("-")[2]
        if reply.status == 204 and last.isdecimal() and int(last):
            return reply.headers.get("Location", place), int(last) + 1
        return self._begin()

    def _send_from(self, place: str, start: int, blob: Blob, on_progress: Callable[[int], None]) -> str:
        def blocks() -> Iterator[bytes]:
            sent = start
            for data in blob.blocks(start):
                yield data
                sent += len(data)
                on_progress(sent)

        span = {"Content-Range": f"{start}-{blob.nbytes - 1}", "Content-Type": "application/octet-stream"}
        body = Body(blocks, blob.nbytes - start, span)
        return self._location(self._ask("PATCH", place, (202, 204), "take a layer", body))

    def _location(self, reply: Reply) -> str:
        place = reply.headers.get("Location", "")
        if not place:
            raise ImageError(f"{self._reference.host} names no place to upload to", why="the protocol requires it")
        return str(place)

    def _ask(
        self, method: str, url: str, expected: tuple[int, ...] | None, doing: str, body: Body | None = None
    ) -> Reply:
        """Send a request; on a 401 authenticate and send it again. An unexpected status is an error."""
        if not url.startswith(("/", "http:", "https:")):
            url = f"/v2/{self._reference.repository}/{url}"
        reply = self._send(method, url, body)
        if reply.status == 401:
            self._authorization = self._authorize(reply.headers.get("WWW-Authenticate", ""))
            reply = self._send(method, url, body)
        if expected is None or reply.status in expected:
            return reply
        if reply.status in (401, 403):
            raise self._denied(reply.reason())
        message = f"{self._reference.host} does not {doing}: {reply.reason()}"
        if reply.status >= 500 or reply.status == 429:
            raise NetworkError(message, fix="try again later: layers that are there are not sent again")
        raise ImageError(message, fix="check the name of the image, and whether the registry allows it")

    def _send(self, method: str, url: str, body: Body | None, authorization: str = "") -> Reply:
        parts = urllib.parse.urlsplit(url)
        address = parts.netloc or self._reference.address
        headers = {"User-Agent": "bireme"}
        if body is not None:
            headers |= {**body.headers, "Content-Length": str(body.nbytes)}
        # The token is the registry's: an upload may be redirected to another host, which must not get it.
        if self._authorization and address == self._reference.address:
            authorization = self._authorization
        if authorization:
            headers["Authorization"] = authorization
        path = urllib.parse.urlunsplit(("", "", parts.path, parts.query, ""))
        connection = self._connect(address, parts.scheme)
        try:
            connection.request(method, path, body.blocks() if body else None, headers)
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

    def _authorize(self, challenge: str) -> str:
        """The `Authorization` that a registry demands: name and password, or a token that a server issues for them."""
        self._authorization = ""
        scheme, _, rest = challenge.strip().partition(" ")
        asked = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        if scheme.lower() == "basic" and self._login is not None:
            return self._login.header()
        realm = asked.get("realm", "")
        if scheme.lower() != "bearer" or not realm:
            raise self._denied("it requires a name and a password")
        issuer = urllib.parse.urlsplit(realm).netloc
        reply = self._ask_for_token(realm, asked)
        if reply.status != 200:
            raise self._denied(f"{issuer} gives no token: {reply.reason()}")
        try:
            answer = json.loads(reply.body)
            return f"Bearer {answer.get('token') or answer['access_token']}"
        except (ValueError, KeyError, AttributeError) as e:
            raise self._denied(f"{issuer} answers with something else than a token") from e

    def _ask_for_token(self, realm: str, asked: dict[str, str]) -> Reply:
        scope = asked.get("scope", f"repository:{self._reference.repository}:pull,push")
        form = {"service": asked.get("service", ""), "scope": scope}
        login = self._login
        if login is None or not login.refresh:
            url = f"{realm}?{urllib.parse.urlencode(form)}"
            return self._send("GET", url, None, login.header() if login is not None else "")
        form |= {"grant_type": "refresh_token", "client_id": "bireme", "refresh_token": login.refresh}
        data = urllib.parse.urlencode(form).encode()
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._send("POST", realm, Body(lambda: iter([data]), len(data), kind))

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
        raise ImageError(f"cannot read certificates from {ca}: {e}", fix="`--ca` takes a file in PEM format") from e
