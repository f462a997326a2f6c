"""Certificates of the test cluster: one authority, one certificate for each part, and kubeconfigs that hold them.

All are EC P-256, made anew for every cluster and gone with its directory. The group `system:masters` may do
everything; nodes and the proxy get what Kubernetes' own rules give to their names.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from . import network

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

MASTERS = "system:masters"


@dataclass(frozen=True)
class Leaf:
    """One certificate: whose it is (`name`, `group`) and which names it answers to as a server."""

    file: str
    name: str
    group: str = ""
    answers_to: tuple[str, ...] = field(default=())


def leaves(nodes: dict[str, str]) -> list[Leaf]:
    """Every certificate that a cluster with these nodes (name → address) needs."""
    service = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    api = (*service, network.API_SERVICE, network.CONTROL, "127.0.0.1", "localhost")
    return [
        Leaf("apiserver", "kube-apiserver", answers_to=api),
        Leaf("admin", "admin", MASTERS),
        Leaf("kubelet-client", "kube-apiserver-kubelet-client", MASTERS),
        # In the masters' group its controllers need no accounts of their own, which saves seconds at the start.
        Leaf("controller-manager", "system:kube-controller-manager", MASTERS),
        Leaf("scheduler", "system:kube-scheduler"),
        Leaf("proxy", "system:kube-proxy"),
        Leaf("dns", "system:coredns"),
        *(Leaf(name, f"system:node:{name}", "system:nodes", (name, address)) for name, address in nodes.items()),
    ]


def write(directory: Path, wanted: list[Leaf]) -> None:
    """Write ca.crt, ca.key, sa.key, sa.pub and a .crt and .key for each leaf."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    directory.mkdir(parents=True, exist_ok=True)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _sign(Leaf("ca", "bireme-test-cluster"), authority_key, None, authority_key)
    _write_pair(directory, "ca", authority, authority_key)
    for leaf in wanted:
        key = ec.generate_private_key(ec.SECP256R1())
        _write_pair(directory, leaf.file, _sign(leaf, key, authority, authority_key), key)
    accounts = ec.generate_private_key(ec.SECP256R1())
    _write_key(directory / "sa.key", accounts)
    public = accounts.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (directory / "sa.pub").write_bytes(public)


def _sign(
    leaf: Leaf,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate | None,
    authority_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, leaf.group)] if leaf.group else []
    subject = x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, leaf.name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .add_extension(_usage(is_authority=authority is None), critical=True)
    )
    if authority is not None:
        both = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
    if leaf.answers_to:
        names = x509.SubjectAlternativeName([_alternative(n) for n in leaf.answers_to])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(authority_key, hashes.SHA256())


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_pair(directory: Path, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives import serialization

    (directory / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_key(directory / f"{file}.key", key)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives import serialization

    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def kubeconfig(directory: Path, file: str, server: str) -> str:
    """A kubeconfig that stands alone: address, authority, and the certificate and key of `file`."""

    def data(name: str) -> str:
        return base64.b64encode((directory / name).read_bytes()).decode()

    user = {"client-certificate-data": data(f"{file}.crt"), "client-key-data": data(f"{file}.key")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bireme", "cluster": {"server": server, "certificate-authority-data": data("ca.crt")}}],
        "users": [{"name": file, "user": user}],
        "contexts": [{"name": "bireme", "context": {"cluster": "bireme", "user": file, "namespace": "default"}}],
        "current-context": "bireme",
    }
    return json.dumps(config, indent=1) + "\n"
