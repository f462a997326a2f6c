from __future__ import annotations

import builtins
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from bireme.core import certificates
from bireme.core.certificates import Pair, days_left, files_of, keep_ca, make_ca, make_leaf, read_ca
from bireme.core.errors import CertificateError, MissingError, StorageError

NAME = "demo.default.bireme"


@pytest.fixture(scope="module")
def ca() -> Pair:
    return make_ca(NAME)


def parsed(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def test_a_leaf_is_signed_for_both_ends_under_its_names(ca: Pair) -> None:
    leaf, authority = parsed(make_leaf(ca, [NAME, "also.bireme"]).certificate), parsed(ca.certificate)
    leaf.verify_directly_issued_by(authority)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAME, "also.bireme"]
    purposes = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(purposes) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_an_authority_signs_leaves_and_nothing_below_them(ca: Pair) -> None:
    limits = parsed(ca.certificate).extensions.get_extension_for_class(x509.BasicConstraints)
    assert limits.critical and limits.value.ca and limits.value.path_length == 0


def test_keys_are_on_the_curve_p256_and_never_the_same(ca: Pair) -> None:
    first, second = make_leaf(ca, [NAME]), make_leaf(ca, [NAME])
    key = parsed(first.certificate).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    assert first.key != second.key
    assert parsed(first.certificate).serial_number != parsed(second.certificate).serial_number


def test_a_leaf_lasts_90_days_and_an_authority_ten_years(ca: Pair) -> None:
    assert days_left(make_leaf(ca, [NAME]).certificate) == pytest.approx(90, abs=0.01)
    assert days_left(ca.certificate) == pytest.approx(3650, abs=0.01)
    assert days_left(make_leaf(ca, [NAME], days=-1).certificate) == pytest.approx(-1, abs=0.01)


def test_the_longest_names_of_a_job_and_a_namespace_fit() -> None:
    name = f"{'j' * 63}.{'n' * 63}.bireme"
    leaf = parsed(make_leaf(make_ca(name), [name]).certificate)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [name]


def test_the_processes_of_a_job_never_get_the_authoritys_key(ca: Pair) -> None:
    files = files_of(ca, NAME)
    assert set(files) == {"ca.crt", "tls.crt", "tls.key"}
    assert files["ca.crt"] == ca.certificate
    assert all(ca.key not in content for content in files.values())


def test_an_authority_is_made_once_for_its_owners_eyes(tmp_path: Path) -> None:
    place = tmp_path / "ca" / "default-demo"
    made = keep_ca(place, NAME)
    assert keep_ca(place, NAME) == made == read_ca(place)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (place, *place.iterdir())}
    assert modes == {"default-demo": 0o700, "ca.crt": 0o600, "ca.key": 0o600}
    assert [path.name for path in place.parent.iterdir()] == ["default-demo"], "nothing half-made is left"


def test_all_who_make_an_authority_at_once_get_the_same_one(tmp_path: Path) -> None:
    place = tmp_path / "ca" / "default-demo"
    with ThreadPoolExecutor(8) as crowd:
        assert len(set(crowd.map(lambda _: keep_ca(place, NAME), range(8)))) == 1
    assert [path.name for path in place.parent.iterdir()] == ["default-demo"]


def test_there_is_no_authority_in_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert read_ca(tmp_path / "nowhere") is None


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    keep_ca(tmp_path / "ca", NAME)
    (tmp_path / "ca" / "ca.key").chmod(0o644)
    with pytest.raises(CertificateError, match=r"ca\.key can be read by others") as caught:
        keep_ca(tmp_path / "ca", NAME)
    assert f"chmod 600 {tmp_path}/ca/ca.key" in caught.value.fix


def test_a_directory_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CertificateError, match="holds something else than a job's authority"):
        keep_ca(tmp_path, NAME)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_place_that_cannot_be_written_to_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        keep_ca(tmp_path / "file" / "deeper" / "ca", NAME)


@pytest.mark.parametrize("part", ["certificate", "key"])
def test_a_torn_authority_is_reported_and_signs_nothing(ca: Pair, part: str) -> None:
    torn = ca._replace(**{part: b"-----BEGIN NOTHING-----"})
    with pytest.raises(CertificateError, match="cannot read the"):
        make_leaf(torn, [NAME])


def test_without_cryptography_the_fix_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> ModuleType:
        if name == "cryptography":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingError, match="cryptography") as caught:
        certificates.make_ca(NAME)
    assert "bireme[tls]" in caught.value.fix
