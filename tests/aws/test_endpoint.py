"""The stand-in for EKS' endpoint: which tokens it takes, and what an API server behind it gets."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tools.kube import pki

from bireme.aws.access import token
from tests.aws.double import World
from tests.aws.endpoint import PREFIX, EfsStandIn, Endpoint, InvalidError, RefusedError, signer_of
from tests.aws.stage import NAME, Stage

REGION = "us-west-2"
OPERATOR = "arn:aws:iam::123456789012:user/operator"
SECRETS = {"test": "test"}
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage.make()


def with_url(text: str, change: Callable[[str], str]) -> str:
    """A token with another URL in it."""
    encoded = text.removeprefix(PREFIX)
    url = change(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode())
    return PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def signer(text: str, cluster: str = NAME, later: timedelta = timedelta()) -> str:
    return signer_of(text, cluster, REGION, SECRETS, datetime.now(UTC) + later)


def test_our_own_token_is_taken_for_fifteen_minutes(stage: Stage) -> None:
    made = token(stage.aws(), NAME)
    assert signer(made) == signer(made, later=timedelta(minutes=14)) == "test"
    with pytest.raises(RefusedError, match="signed at"):
        signer(made, later=timedelta(minutes=16))


def test_a_token_for_another_cluster_is_refused(stage: Stage) -> None:
    with pytest.raises(RefusedError, match="the signature is wrong"):
        signer(token(stage.aws(), "another"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda url: url.partition("&X-Amz-Signature")[0], "the signature is wrong"),
        (lambda url: url.replace("X-Amz-Expires=60", "X-Amz-Expires=901"), "X-Amz-Expires is 901"),
        (lambda url: url.replace("X-Amz-Expires=60", "X-Amz-Expires=600"), "the signature is wrong"),
        (lambda url: url.replace("%3Bx-k8s-aws-id", ""), "x-k8s-aws-id is not signed"),
        (lambda url: url.replace("sts.us-west-2", "sts.eu-west-1"), "is not https://sts.us-west-2"),
        (lambda url: url.replace("amazonaws.com", "example"), "is not https://sts.us-west-2"),
        (lambda url: url.replace("GetCallerIdentity", "GetSessionToken"), "GetCallerIdentity alone"),
        (lambda url: url.replace("Credential=test", "Credential=stranger"), "unknown access key stranger"),
        (lambda url: f"{url}&Tags=1", "GetCallerIdentity alone"),
        (lambda url: "https://sts.us-west-2.amazonaws.com/?x", "holds no URL"),
    ],
)
def test_a_token_that_was_tampered_with_is_refused(stage: Stage, change: Callable[[str], str], why: str) -> None:
    made = token(stage.aws(), NAME)
    with pytest.raises(RefusedError, match=why):
        signer(with_url(made, change))


@pytest.mark.parametrize("text", ["", "secret", "k8s-aws-v2.aHR0cHM6Ly8", f"{PREFIX}%%%", f"{PREFIX}aGk="])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(RefusedError):
        signer(text)


@contextmanager
def api_server(place: Path) -> Iterator[tuple[int, list[bytes]]]:
    """A TLS server that wants the administrator's certificate, keeps what it gets and answers `ok`."""
    pki.write(place, [pki.Leaf("apiserver", "kube-apiserver", answers_to=("127.0.0.1",)), pki.Leaf("admin", "admin")])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place / "apiserver.crt", place / "apiserver.key")
    context.load_verify_locations(place / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    got: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                caller, _ = door.accept()
            except OSError:
                return
            with caller, context.wrap_socket(caller, server_side=True) as secure:
                got.append(secure.recv(65536))
                secure.sendall(OK)

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield door.getsockname()[1], got
        door.shutdown(socket.SHUT_RDWR)
        thread.join()


def ask(
    endpoint: Endpoint, text: str, method: str = "GET", path: str = "/version", body: str = ""
) -> tuple[int, bytes]:
    context = ssl.create_default_context(cadata=base64.b64decode(endpoint.authority).decode())
    port = int(endpoint.url.rpartition(":")[2])
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    try:
        connection.request(method, path, body or None, {"Authorization": f"Bearer {text}"} if text else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def admit(world: World, arn: str = OPERATOR) -> None:
    world.principals["test"] = OPERATOR
    world.plant("AWS::EKS::AccessEntry", ClusterName=NAME, PrincipalArn=arn)


def test_requests_with_a_token_reach_the_api_server_without_it(tmp_path: Path) -> None:
    stage = Stage.make()
    admit(stage.world)
    with api_server(tmp_path) as (port, got), Endpoint(stage.world, NAME, SECRETS, port, tmp_path) as endpoint:
        assert stage.world.kubernetes == (endpoint.url, endpoint.authority)
        assert ask(endpoint, token(stage.aws(), NAME)) == (200, b"ok")
        head = got[0].decode()
        assert head.startswith("GET /version HTTP/1.1\r\n") and "Connection: close" in head
        assert "authorization" not in head.lower()
        assert (endpoint.served, endpoint.refused) == (1, [])


def test_requests_without_a_token_never_reach_the_server(tmp_path: Path) -> None:
    stage = Stage.make()
    admit(stage.world)
    with api_server(tmp_path) as (port, got), Endpoint(stage.world, NAME, SECRETS, port, tmp_path) as endpoint:
        for text in ("", "secret", token(stage.aws(), "another")):
            code, body = ask(endpoint, text)
            assert (code, json.loads(body)["reason"]) == (401, "Unauthorized")
        assert endpoint.refused[-1] == "the signature is wrong"
        assert (endpoint.served, got) == (0, [])


def test_a_user_without_an_access_entry_is_refused(tmp_path: Path) -> None:
    stage = Stage.make()
    admit(stage.world, OPERATOR.replace("operator", "another"))
    with api_server(tmp_path) as (port, got), Endpoint(stage.world, NAME, SECRETS, port, tmp_path) as endpoint:
        assert ask(endpoint, token(stage.aws(), NAME))[0] == 401
        assert endpoint.refused == [f"{OPERATOR} has no access entry"]
        assert got == []


def volume(driver: str, handle: str) -> str:
    spec = {"mountOptions": ["tls"], "csi": {"driver": driver, "volumeHandle": handle}}
    return json.dumps({"kind": "PersistentVolume", "spec": spec})


def test_a_volume_of_efs_becomes_a_directory_of_its_access_point(tmp_path: Path) -> None:
    stage = Stage.make()
    outputs = stage.up()
    handle = f"{outputs['FileSystemId']}::{outputs['AccessPointId']}"
    driver = EfsStandIn(stage.world, tmp_path, "/srv/bireme")
    with pytest.raises(InvalidError, match="no access point"):
        driver.replace(volume("efs.csi.aws.com", "fs-1::fsap-1").encode())
    foreign = volume("ebs.csi.aws.com", "vol-1").encode()
    assert driver.replace(foreign) == foreign
    if os.geteuid():
        pytest.skip("changing owners needs root")
    made = json.loads(driver.replace(volume("efs.csi.aws.com", handle).encode()))["spec"]
    name = f"efs-{handle.replace('::', '-')}"
    assert made == {"hostPath": {"path": f"/srv/bireme/{name}", "type": "Directory"}}
    found = (tmp_path / name).stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (1000, 1000, 0o750)
