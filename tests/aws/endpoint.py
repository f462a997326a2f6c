"""Stand-ins for two parts of EKS, in front of a real API server: the cluster's endpoint, and the driver for EFS.

`Endpoint` is an HTTPS server on 127.0.0.1. It checks a request's token as EKS does and then carries the connection to
the API server, where it is the administrator. It reads only the head of a request, so watches, logs and exec work.

The real EFS driver mounts a directory of a file system. The test cluster has no such driver: a PersistentVolume of it
gets a `hostPath` instead of its `csi` source, a directory that all nodes share, with the owner and the permissions of
the access point in the double. Not covered by that: mounting, TLS to EFS, and the user that EFS enforces.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import os
import ssl
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from tools.kube import pki

from tests.aws.double import World

PREFIX = "k8s-aws-v1."
LASTS = timedelta(minutes=15)
"""How long a token is taken, and the most that X-Amz-Expires may say."""
PARAMETERS = {
    "Action", "Version", "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-Security-Token",
    "X-Amz-SignedHeaders", "X-Amz-Signature",
}  # fmt: skip
"""What a token may ask of STS; EKS refuses every other parameter."""
EFS_DRIVER = "efs.csi.aws.com"
CONNECT_S = 10.0


class RefusedError(Exception):
    """A token is not accepted. Clients see 401 only; the reason is for tests."""


class InvalidError(Exception):
    """An object is not accepted."""


# --- tokens ---------------------------------------------------------------------------------------------------------


def signer_of(
    token: str, cluster: str, region: str, secrets: Mapping[str, str], now: datetime, lasts: timedelta = LASTS
) -> str:
    """The access key that signed a token for this cluster, checked as EKS and STS do; RefusedError otherwise."""
    if not token.startswith(PREFIX):
        raise RefusedError(f"the token does not begin with {PREFIX}")
    encoded = token.removeprefix(PREFIX)
    if "=" in encoded:
        raise RefusedError("the token is padded")
    try:
        url = urlsplit(base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_", validate=True).decode())
        pairs = parse_qsl(url.query, keep_blank_values=True, strict_parsing=True)
    except (ValueError, binascii.Error) as e:
        raise RefusedError(f"the token holds no URL: {e}") from e
    host = f"sts.{region}.amazonaws.com"
    if (url.scheme, url.netloc, url.path) != ("https", host, "/"):
        raise RefusedError(f"{url.scheme}://{url.netloc}{url.path} is not https://{host}/")
    asked = dict(pairs)
    if len(asked) != len(pairs) or not asked.keys() <= PARAMETERS or asked.get("Action") != "GetCallerIdentity":
        raise RefusedError("the URL does not ask for GetCallerIdentity alone")
    if "x-k8s-aws-id" not in asked.get("X-Amz-SignedHeaders", "").split(";"):
        raise RefusedError("x-k8s-aws-id is not signed")
    _check_age(asked, now, lasts)
    # EKS sends the URL to STS with its own name in this header: a token for another cluster has another signature.
    return _check_signature(asked, {"host": host, "x-k8s-aws-id": cluster}, region, secrets)


def _check_age(asked: Mapping[str, str], now: datetime, lasts: timedelta) -> None:
    try:
        signed = datetime.strptime(asked["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        expires = int(asked["X-Amz-Expires"])
    except (KeyError, ValueError) as e:
        raise RefusedError(f"no date, or no number of seconds: {e}") from e
    if not 0 <= expires <= LASTS.total_seconds():
        raise RefusedError(f"X-Amz-Expires is {expires}")
    if not now - lasts < signed < now + timedelta(minutes=5):
        raise RefusedError(f"signed at {signed:%H:%M:%S}, and it is {now:%H:%M:%S}")


def _check_signature(
    asked: Mapping[str, str], headers: Mapping[str, str], region: str, secrets: Mapping[str, str]
) -> str:
    """Signature Version 4 of a URL, as STS computes it."""
    key, _, scope = asked.get("X-Amz-Credential", "").partition("/")
    if key not in secrets:
        raise RefusedError(f"unknown access key {key}")
    day = asked["X-Amz-Date"][:8]
    if scope != f"{day}/{region}/sts/aws4_request" or asked.get("X-Amz-Algorithm") != "AWS4-HMAC-SHA256":
        raise RefusedError(f"signed for {scope}")
    names = asked["X-Amz-SignedHeaders"].split(";")
    if set(names) - headers.keys():
        raise RefusedError(f"signed headers that EKS does not send: {names}")
    query = "&".join(f"{k}={quote(v, safe='-_.~')}" for k, v in sorted(asked.items()) if k != "X-Amz-Signature")
    signed_headers = "".join(f"{name}:{headers[name]}\n" for name in names)
    request = "\n".join(["GET", "/", query, signed_headers, ";".join(names), hashlib.sha256().hexdigest()])
    text = "\n".join(["AWS4-HMAC-SHA256", asked["X-Amz-Date"], scope, hashlib.sha256(request.encode()).hexdigest()])
    secret = f"AWS4{secrets[key]}".encode()
    for part in scope.split("/"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    if not hmac.compare_digest(hmac.digest(secret, text.encode(), "sha256").hex(), asked.get("X-Amz-Signature", "")):
        raise RefusedError("the signature is wrong")
    return key


# --- volumes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EfsStandIn:
    """Directories that all nodes see, one for each access point, in place of the EFS driver."""

    world: World
    here: Path
    """The shared directory as this process sees it."""
    there: str
    """The same directory as the nodes see it."""

    def replace(self, body: bytes) -> bytes:
        """A PersistentVolume with a directory in place of its file system; other objects as they are."""
        volume = json.loads(body)
        spec = volume.get("spec", {})
        source = spec.get("csi", {})
        if source.get("driver") != EFS_DRIVER:
            return body
        name = self._make(source["volumeHandle"])
        # Volumes of type hostPath take no mount options.
        kept = {key: value for key, value in spec.items() if key not in ("csi", "mountOptions")}
        directory = {"path": f"{self.there}/{name}", "type": "Directory"}
        return json.dumps(volume | {"spec": kept | {"hostPath": directory}}).encode()

    def _make(self, handle: str) -> str:
        """The directory of an access point, made as EFS does at the first mount."""
        system, _, point = handle.partition("::")
        with self.world._lock:
            found = self.world.region(self.world.home).get("AWS::EFS::AccessPoint", point)
        if found is None or found.props["FileSystemId"] != system:
            raise InvalidError(f"there is no access point {handle}")
        owner = found.props["RootDirectory"]["CreationInfo"]
        directory = self.here / f"efs-{system}-{point}"
        if not directory.exists():
            directory.mkdir()
            directory.chmod(int(owner["Permissions"], 8))
            os.chown(directory, int(owner["OwnerUid"]), int(owner["OwnerGid"]))
        return directory.name


# --- connections ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Head:
    """The first line and the headers of a request."""

    first: str
    headers: list[tuple[str, str]]

    @classmethod
    def parse(cls, text: bytes) -> Head:
        first, *lines = text.decode("latin-1").rstrip("\r\n").split("\r\n")
        return cls(first, [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)])

    def get(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")

    @property
    def is_volume(self) -> bool:
        """Whether the request writes a PersistentVolume."""
        method, path, _ = self.first.split(" ")
        return method in ("POST", "PUT", "PATCH") and path.startswith("/api/v1/persistentvolumes")

    def forwarded(self, length: int | None) -> bytes:
        """As the API server gets it: without the token, and the last of its connection unless that is upgraded."""
        left_out = {"authorization"} | ({"content-length"} if length is not None else set())
        headers = [(name, value) for name, value in self.headers if name.lower() not in left_out]
        if not self.get("upgrade"):
            headers = [(name, value) for name, value in headers if name.lower() != "connection"]
            headers.append(("Connection", "close"))
        if length is not None:
            headers.append(("Content-Length", str(length)))
        return "\r\n".join([self.first, *(f"{name}: {value}" for name, value in headers), "", ""]).encode("latin-1")


class Endpoint:
    """The endpoint of one EKS cluster; a context manager. `world.kubernetes` names it while it runs.

    `secrets` are the secret keys by access key; `api` is the API server's port on 127.0.0.1, and `certificates` the
    directory with its authority (ca.crt) and its administrator (admin.crt, admin.key).
    """

    def __init__(
        self,
        world: World,
        cluster: str,
        secrets: Mapping[str, str],
        api: int,
        certificates: Path,
        volumes: EfsStandIn | None = None,
    ) -> None:
        self.refused: list[str] = []
        """Why requests were refused."""
        self.served = 0
        self.lasts = LASTS
        """How long tokens are taken; tests that cannot wait for a quarter of an hour shorten it."""
        self._world, self._cluster, self._secrets, self._volumes = world, cluster, dict(secrets), volumes
        self._api = api
        self._to_api = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        self._to_api.load_cert_chain(certificates / "admin.crt", certificates / "admin.key")
        # One thread runs the event loop: an SSL socket must not be read and written by two threads at once.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._connections: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Endpoint:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            pki.write(folder, [pki.Leaf("endpoint", "eks", answers_to=("127.0.0.1",))])
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / "endpoint.crt", folder / "endpoint.key")
            authority = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
        self._thread.start()
        self._server = self._wait(asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=context))
        self.url = f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.authority = authority
        self._world.kubernetes = (self.url, authority)
        return self

    def __exit__(self, *exc: object) -> None:
        self._world.kubernetes = None
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _close(self) -> None:
        self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.sleep(0.05)  # transports close in the next turn of the loop

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._connections.add(me)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # a client that went away, an API server that restarts, or the end of the test
        finally:
            self._connections.discard(me)
            _drop(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = Head.parse(await reader.readuntil(b"\r\n\r\n"))
        try:
            self._authenticate(head.get("authorization"))
            body = await self._body(head, reader)
        except RefusedError as e:
            self.refused.append(str(e))
            await _answer(writer, 401, "Unauthorized", "Unauthorized")
            return
        except InvalidError as e:
            await _answer(writer, 422, "Invalid", str(e))
            return
        self.served += 1
        connecting = asyncio.open_connection("127.0.0.1", self._api, ssl=self._to_api, server_hostname="127.0.0.1")
        from_api, to_api = await asyncio.wait_for(connecting, CONNECT_S)
        try:
            to_api.write(head.forwarded(None if body is None else len(body)) + (body or b""))
            await _join(_pump(reader, to_api), _pump(from_api, writer))
        finally:
            _drop(to_api)

    async def _body(self, head: Head, reader: asyncio.StreamReader) -> bytes | None:
        """The body to send, where it is not the one that comes."""
        if self._volumes is None or not head.is_volume:
            return None
        return self._volumes.replace(await reader.readexactly(int(head.get("content-length"))))

    def _authenticate(self, authorization: str) -> None:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise RefusedError("no token")
        home = self._world.home
        key = signer_of(token.strip(), self._cluster, home, self._secrets, datetime.now(UTC), self.lasts)
        who = self._world.principals.get(key)
        with self._world._lock:
            entries = self._world.region(home).of("AWS::EKS::AccessEntry", ClusterName=self._cluster)
        if who is None or who not in [entry.props["PrincipalArn"] for entry in entries]:
            raise RefusedError(f"{who or key} has no access entry")


async def _answer(writer: asyncio.StreamWriter, code: int, reason: str, message: str) -> None:
    """Refuse a request as Kubernetes does."""
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    body = json.dumps(status | {"message": message, "reason": reason, "code": code}).encode()
    head = f"HTTP/1.1 {code} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
    await writer.drain()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 18):
        target.write(data)
        await target.drain()


async def _join(*ways: Any) -> None:
    """Carry both ways until one side has closed; an answer always ends with the API server's close."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _drop(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        writer.close()
