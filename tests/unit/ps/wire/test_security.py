from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.core.certificates import Pair, files_of, make_ca, make_leaf
from bireme.core.errors import CertificateError
from bireme.ps.wire import security
from bireme.ps.wire.security import CertificateDirectory, load

NAME = "demo.default.bireme"


def give(directory: Path, ca: Pair, *, name: str = NAME, days: float = 90) -> Path:
    """What a pod of the job finds in its directory."""
    directory.mkdir(exist_ok=True)
    for file, content in files_of(ca, name, days).items():
        put(directory / file, content)
    return directory


def put(path: Path, content: bytes) -> None:
    """Write a new file in place of the old one: another inode, however coarse the clock of the file system is."""
    half = path.with_suffix(".half")
    half.write_bytes(content)
    half.replace(path)


@pytest.fixture(scope="module")
def ca() -> Pair:
    return make_ca(NAME)


@pytest.fixture(autouse=True)
def unused() -> Iterator[None]:
    """Whatever a test does, the next one begins without TLS."""
    yield
    security.use(None)


def test_a_directory_has_the_jobs_name_and_how_long_it_is_good(tmp_path: Path, ca: Pair) -> None:
    found = load(give(tmp_path, ca, days=3))
    assert found.name == NAME
    assert found.until == pytest.approx(time.time() + 3 * 86400, abs=60)


def test_reading_a_directory_needs_no_cryptography(tmp_path: Path, ca: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    give(tmp_path, ca)
    monkeypatch.setitem(sys.modules, "cryptography", None)  # importing it fails
    assert load(tmp_path).name == NAME


def test_files_are_read_again_only_when_they_have_changed(tmp_path: Path, ca: Pair) -> None:
    place = CertificateDirectory(give(tmp_path, ca, days=3))
    first = place.credentials()
    assert place.credentials() is first
    give(tmp_path, ca, days=80)
    renewed = place.credentials()
    assert renewed.until == pytest.approx(time.time() + 80 * 86400, abs=60)
    assert place.credentials() is renewed


def test_a_renewal_by_symbolic_link_as_in_kubernetes_is_seen(tmp_path: Path, ca: Pair) -> None:
    give(tmp_path / "first", ca, days=3)
    (tmp_path / "..data").symlink_to("first")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for file in ("ca.crt", "tls.crt", "tls.key"):
        (mounted / file).symlink_to(f"../..data/{file}")
    place = CertificateDirectory(mounted)
    before = place.credentials()
    give(tmp_path / "second", ca, days=80)
    (tmp_path / "..next").symlink_to("second")
    os.replace(tmp_path / "..next", tmp_path / "..data")  # noqa: PTH105 - a link, not what it points to
    assert place.credentials().until > before.until + 86400


def test_half_a_renewal_changes_nothing_and_is_logged_once(
    tmp_path: Path, ca: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    place = CertificateDirectory(give(tmp_path, ca))
    before = place.credentials()
    leaf = make_leaf(ca, [NAME])
    put(tmp_path / "tls.crt", leaf.certificate)  # the key that belongs to it comes later
    assert [place.credentials(), place.credentials()] == [before, before]
    assert [r.message for r in caplog.records if "kept previous certificates" in r.message][1:] == []
    put(tmp_path / "tls.key", leaf.key)
    assert place.credentials() is not before


def test_an_own_expired_certificate_is_named_with_date_and_fix(tmp_path: Path, ca: Pair) -> None:
    place = CertificateDirectory(give(tmp_path, ca, days=-2))
    with pytest.raises(CertificateError, match="certificate of this process has expired: it was good until 20") as info:
        place.credentials()
    assert "renews" in info.value.fix and str(tmp_path / "tls.crt") in info.value.why
    assert info.value.exit_code == 16
    give(tmp_path, ca)
    assert place.credentials().name == NAME


def test_a_certificate_expires_while_the_process_runs(tmp_path: Path, ca: Pair) -> None:
    place = CertificateDirectory(give(tmp_path, ca, days=1))
    assert place.credentials().name == NAME
    with pytest.raises(CertificateError, match="has expired"):
        place.credentials(now=time.time() + 2 * 86400)


def without_key(directory: Path, ca: Pair) -> None:
    (directory / "tls.key").unlink()


def with_another_key(directory: Path, ca: Pair) -> None:
    (directory / "tls.key").write_bytes(make_leaf(ca, [NAME]).key)


def with_another_authority(directory: Path, ca: Pair) -> None:
    (directory / "ca.crt").write_bytes(make_ca(NAME).certificate)


def torn(directory: Path, ca: Pair) -> None:
    (directory / "tls.crt").write_bytes((directory / "tls.crt").read_bytes()[:100])


def empty(directory: Path, ca: Pair) -> None:
    (directory / "ca.crt").write_bytes(b"")


def locked(directory: Path, ca: Pair) -> None:
    from cryptography.hazmat.primitives import serialization as pem

    key = pem.load_pem_private_key((directory / "tls.key").read_bytes(), None)
    lock = pem.BestAvailableEncryption(b"secret")
    content = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, lock)
    (directory / "tls.key").write_bytes(content)


BROKEN = {
    locked: "the key is locked by a password",
    without_key: "tls.key: No such file or directory",
    with_another_key: "the key is not the certificate's",
    with_another_authority: "tls.crt is not signed by ca.crt",
    torn: "they cannot be read",
    empty: "they cannot be read",
}


@pytest.mark.parametrize("breaking", BROKEN)
def test_files_that_do_not_belong_together_are_reported(tmp_path: Path, ca: Pair, breaking: object) -> None:
    give(tmp_path, ca)
    breaking(tmp_path, ca)  # type: ignore[operator]
    with pytest.raises(CertificateError, match=f"{tmp_path} cannot be used: .*") as caught:
        CertificateDirectory(tmp_path).credentials()
    assert BROKEN[breaking] in caught.value.what  # type: ignore[index]


def test_a_certificate_without_a_dns_name_is_refused(tmp_path: Path, ca: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    give(tmp_path, ca)
    monkeypatch.setattr(security, "_own_certificate", lambda *_: {"subjectAltName": (("IP Address", "10.0.0.1"),)})
    with pytest.raises(CertificateError, match="carries no DNS name"):
        load(tmp_path)


def test_using_a_directory_is_logged_and_a_bad_one_is_an_error(
    tmp_path: Path, ca: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    security.use(give(tmp_path / "good", ca))
    assert f"secured connections name={NAME}" in caplog.text
    security.use(tmp_path / "nowhere")
    assert caplog.records[-1].levelname == "ERROR" and "nowhere cannot be used" in caplog.text
    assert security.is_used(), "plain connections would be worse than none"


def test_without_certificates_nothing_is_sent(tmp_path: Path, ca: Pair) -> None:
    security.use(give(tmp_path, ca, days=-1))
    here, there = socket.socketpair()
    with there:
        with pytest.raises(CertificateError):
            security.secure(here)
        assert there.recv(1) == b""


def test_plain_connections_pass_untouched() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert security.secure(here) is here


@pytest.mark.parametrize("days", [12, -1])
def test_a_process_reports_until_when_its_certificate_is_good(tmp_path: Path, ca: Pair, days: int) -> None:
    assert security.good_until() is None
    security.use(give(tmp_path, ca, days=days))
    assert security.good_until() == pytest.approx(time.time() + 86400 * days, abs=7200)
    security.use(tmp_path / "nowhere")
    assert security.good_until() is None
