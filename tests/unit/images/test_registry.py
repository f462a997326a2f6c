from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.images.making import write_layer
from tests.unit.images.registry_stand_in import registry

from bireme.core.errors import ImageError, NetworkError, UsageError
from bireme.images.archive import Image, make_image
from bireme.images.credentials import RegistryLogin
from bireme.images.layers import digest_of
from bireme.images.registry import ATTEMPTS, Pushed, Reference, Registry, parse_reference


@pytest.fixture
def image(tmp_path: Path) -> Image:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(bytes(range(256)) * 10_000)
    layer = write_layer("only", tree, tmp_path / "layer.tar")
    return make_image("x:1", (layer,), {}, {})


def push(image: Image, address: str, pauses: list[float] | None = None, login: RegistryLogin | None = None) -> Pushed:
    reference = parse_reference(f"{address}/ml/x:1")
    waited = pauses if pauses is not None else []
    return Registry(reference, login=login, is_plain=True, pause=waited.append).push(image)


def test_layers_and_config_come_before_the_manifest(image: Image) -> None:
    with registry() as (address, state):
        done = push(image, address)
    assert state.manifests == {"1": image.manifest}
    assert set(state.blobs) == {image.layers[0].digest, digest_of(image.config)}
    assert state.requests[-1] == "PUT /v2/ml/x/manifests/1"
    assert done == Pushed(image.digest, image.layers[0].nbytes + len(image.config), 0)


def test_what_the_registry_has_is_not_sent_again(image: Image) -> None:
    with registry() as (address, state):
        first = push(image, address)
        state.requests.clear()
        again = push(image, address)
    assert (again.sent, again.skipped) == (0, first.sent)
    assert not [line for line in state.requests if line.startswith(("POST", "PATCH"))]


def test_an_upload_that_broke_off_continues_where_it_stopped(image: Image) -> None:
    pauses: list[float] = []
    with registry(break_after=[1_000_000, 500_000]) as (address, state):
        push(image, address, pauses)
    assert state.blobs[image.layers[0].digest] == image.layers[0].path.read_bytes()
    assert len(state.half) == 2  # one upload each for the layer and the config
    assert pauses == [1.0, 2.0]


def test_a_half_forgotten_blob_is_sent_from_the_beginning(image: Image) -> None:
    with registry(break_after=[1_000_000], forgets=True) as (address, state):
        push(image, address)
    assert state.blobs[image.layers[0].digest] == image.layers[0].path.read_bytes()
    assert len(state.half) == 3


def test_after_some_attempts_we_give_up(image: Image) -> None:
    pauses: list[float] = []
    with registry(break_after=[0] * ATTEMPTS) as (address, state):
        with pytest.raises(NetworkError, match="cannot talk to the registry"):
            push(image, address, pauses)
        assert state.manifests == {}
    assert len(pauses) == ATTEMPTS - 1


@pytest.mark.parametrize("uses_tokens", [False, True])
def test_who_has_logged_in_may_push(image: Image, uses_tokens: bool) -> None:
    with registry(login="me:secret", uses_tokens=uses_tokens) as (address, state):
        push(image, address, login=RegistryLogin("me", "secret"))
    assert state.manifests == {"1": image.manifest}
    assert set(state.scopes) == ({"repository:ml/x:push"} if uses_tokens else set()), "as the challenge wants it"


@pytest.mark.parametrize("uses_tokens", [False, True])
@pytest.mark.parametrize("login", [None, RegistryLogin("me", "wrong")])
def test_a_missing_login_is_reported_with_the_command(
    image: Image, uses_tokens: bool, login: RegistryLogin | None
) -> None:
    with (
        registry(login="me:secret", uses_tokens=uses_tokens) as (address, state),
        pytest.raises(ImageError, match="docker login") as caught,
    ):
        push(image, address, login=login)
    assert "wrong" not in str(caught.value)
    assert state.blobs == {} == state.manifests


def test_a_layer_that_changed_on_disk_is_refused_by_its_digest(image: Image) -> None:
    path = image.layers[0].path
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    with registry() as (address, state), pytest.raises(ImageError, match="DIGEST_INVALID: torn"):
        push(image, address)
    assert state.manifests == {}


def test_a_registry_that_is_too_busy_may_be_tried_later(image: Image) -> None:
    with registry(status=503) as (address, _), pytest.raises(NetworkError, match="try again later"):
        push(image, address)


def test_a_registry_without_tls_is_named_as_such(image: Image) -> None:
    with registry() as (address, _):
        reference = parse_reference(f"{address}/ml/x:1")
        with pytest.raises(ImageError, match="--plain-http"):
            Registry(reference).push(image)


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for name in ("ca.pem", "none.pem"):
        with pytest.raises(ImageError, match="cannot read certificates"):
            Registry(parse_reference("x.example/y:1"), ca=tmp_path / name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("registry.example/ml/bireme:1", Reference("registry.example", "ml/bireme", "1")),
        ("localhost/bireme", Reference("localhost", "bireme", "latest")),
        ("127.0.0.1:5000/a/b/c:v1.2-x_y", Reference("127.0.0.1:5000", "a/b/c", "v1.2-x_y")),
        ("paddlepaddle/paddle-tutorial:k8s_data", Reference("docker.io", "paddlepaddle/paddle-tutorial", "k8s_data")),
        ("bireme", Reference("docker.io", "library/bireme", "latest")),
        ("[::1]:5000/x:1", Reference("[::1]:5000", "x", "1")),
    ],
)
def test_names_are_understood_as_docker_understands_them(text: str, expected: Reference) -> None:
    assert parse_reference(text) == expected


def test_docker_hub_is_talked_to_where_its_registry_is() -> None:
    assert parse_reference("bireme").address == "registry-1.docker.io"
    assert str(parse_reference("bireme")) == "docker.io/library/bireme:latest"


@pytest.mark.parametrize(
    "text",
    ["", "/", "host.example/", "host.example/Upper:1", "a/b:", "a b", "a:b:c", "https://x.example/y:1", "x/../y"],
)
def test_what_is_not_a_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not the name of an image"):
        parse_reference(text)
