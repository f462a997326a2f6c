"""Certificates by which the processes of one job recognise each other.

Every job has an authority of its own: a key and a certificate that stay with the user who submits the job. It signs a
leaf that all processes of the job share, for both ends of a connection, under one name. So a certificate of another
job is refused, and a reader of a pod's Secret cannot make certificates. Keys are on the curve P-256, which makes them
small. Only making certificates needs the package `cryptography`.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bireme.core.errors import CertificateError, MissingError
from bireme.core.files import storage_errors, sync_directory

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_DAYS = 3650
LEAF_DAYS = 90
SKEW = timedelta(hours=1)  # certificates are good from a little before they were made: clocks differ
CA_FILE, LEAF_FILE, LEAF_KEY_FILE = "ca.crt", "tls.crt", "tls.key"
"""What a directory, or a Secret, of a job's process holds."""
CA_KEY_FILE = "ca.key"
_LONGEST_COMMON_NAME = 64


class Pair(NamedTuple):
    """A certificate and its private key, both in PEM."""

    certificate: bytes
    key: bytes


def make_ca(name: str) -> Pair:
    _check_installed()
    from cryptography import x509

    return _issue(f"{name} authority", CA_DAYS, None, x509.BasicConstraints(ca=True, path_length=0))


def make_leaf(ca: Pair, names: Sequence[str], days: float = LEAF_DAYS) -> Pair:
    """Make a certificate for both ends of a connection, under these DNS names; a negative age has expired already."""
    _check_installed()
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID as Purpose

    if not names:
        raise AssertionError("a certificate without a name: this is a bug")
    authority, signer = _parse(ca.certificate), _parse_key(ca.key)
    return _issue(
        names[0],
        days,
        (authority, signer),
        x509.BasicConstraints(ca=False, path_length=None),
        x509.ExtendedKeyUsage([Purpose.SERVER_AUTH, Purpose.CLIENT_AUTH]),
        x509.SubjectAlternativeName([x509.DNSName(name) for name in names]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    )


def files_of(ca: Pair, name: str, days: float = LEAF_DAYS) -> dict[str, bytes]:
    leaf = make_leaf(ca, [name], days)
    return {CA_FILE: ca.certificate, LEAF_FILE: leaf.certificate, LEAF_KEY_FILE: leaf.key}


def days_left(certificate: bytes) -> float:
    _check_installed()
    return (_parse(certificate).not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1)


def read_ca(directory: Path) -> Pair | None:
    try:
        if stat.S_IMODE((directory / CA_KEY_FILE).stat().st_mode) & 0o077:
            raise CertificateError(
                f"{directory / CA_KEY_FILE} can be read by others than you",
                why="a process that has this key can join the job",
                fix=f"type: chmod 600 {directory / CA_KEY_FILE}; if it may have been copied, remove {directory}",
            )
        return Pair((directory / CA_FILE).read_bytes(), (directory / CA_KEY_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise CertificateError(f"cannot read {directory}: {e.strerror or e}") from e


def keep_ca(directory: Path, name: str) -> Pair:
    """The authority of a directory, made if there is none; concurrent callers get the same one."""
    existing = read_ca(directory)
    if existing is not None:
        return existing
    made = make_ca(name)
    with storage_errors(str(directory)):
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        half = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".tmp", dir=directory.parent))
        try:
            _write_private(half / CA_KEY_FILE, made.key)
            _write_private(half / CA_FILE, made.certificate)
            sync_directory(half)
            half.rename(directory)
            sync_directory(directory.parent)
        except OSError as e:
            # rename() replaces no directory that has files in it: another process was first, and its authority counts.
            if e.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        finally:
            shutil.rmtree(half, ignore_errors=True)
    kept = read_ca(directory)
    if kept is None:
        raise CertificateError(
            f"{directory} holds something else than a job's authority",
            fix="inspect it; once it is removed, the next `bireme submit` makes a new authority there",
        )
    return kept


def _write_private(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def _check_installed() -> None:
    try:
        import cryptography  # noqa: F401 - only whether it is there
    except ImportError as e:
        raise MissingError(
            "the package `cryptography` is not installed",
            why="a job on Kubernetes gets certificates of its own, which it makes",
            fix="type: pip install 'bireme[tls]'; or set `tls: false` under `kubernetes` in a network you trust",
        ) from e


def _issue(
    name: str,
    days: float,
    by: tuple[x509.Certificate, EllipticCurvePrivateKey] | None,
    constraints: x509.BasicConstraints,
    *more: x509.ExtensionType,
) -> Pair:
    """Make a key and a certificate for it, signed by an authority or, without one, by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_LONGEST_COMMON_NAME])])
    now = datetime.now(UTC)
    until = now + timedelta(days=days)
    usage = x509.KeyUsage(
        digital_signature=not constraints.ca,
        key_cert_sign=constraints.ca,
        crl_sign=constraints.ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if by is None else by[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, until) - SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in more:
        builder = builder.add_extension(extension, critical=False)
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(builder.sign(key if by is None else by[1], hashes.SHA256()).public_bytes(pem), secret)


def _parse(certificate: bytes) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(certificate)
    except ValueError as e:
        raise CertificateError(f"cannot read the certificate: {e}") from e


def _parse_key(key: bytes) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    try:
        private = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError) as e:
        raise CertificateError(f"cannot read the authority's key: {e}") from e
    if not isinstance(private, EllipticCurvePrivateKey):
        raise CertificateError("the authority's key is of another kind than the ones that bireme makes")
    return private
