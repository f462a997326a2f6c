from __future__ import annotations

import pytest

from bireme.core.errors import UsageError
from bireme.images.reference import Reference, parse_reference


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
