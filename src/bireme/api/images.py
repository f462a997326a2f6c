"""Push an image to a registry; without a name, to the registry of a cluster, whose jobs use it from then on."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from bireme.api.where import Where, has_cluster
from bireme.core.errors import UsageError
from bireme.images.archive import Image, read_archive
from bireme.images.credentials import RegistryLogin, config_files, find_login
from bireme.images.registry import OnProgress, Pushed, Reference, Registry, parse_reference
from bireme.kube.api.cluster_facts import NAME, read_facts, record_image

_ECR = re.compile(r"\d+\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
"""The host of a registry on AWS, and its region."""


@dataclass(frozen=True, slots=True)
class PushedImage:
    """Where an image is now."""

    reference: Reference
    pushed: Pushed
    context: str = ""
    """Of the cluster whose jobs use it from now on; '' where a name was given."""

    @property
    def by_digest(self) -> str:
        """A name that always means this image."""
        return f"{self.reference.host}/{self.reference.repository}@{self.pushed.digest}"


def push_image(
    archive: Path, name: str | None, where: Where, *, is_plain: bool, ca: Path | None, on_progress: OnProgress
) -> PushedImage:
    """Push an image under a name, or to the repository of the current cluster."""
    if name is not None and where.is_asked:
        raise UsageError("--context and --namespace are for an image without a name")
    named = parse_reference(name) if name is not None else None
    repository, where = _cluster_repository(where) if named is None else ("", where)
    image = read_archive(archive)
    reference = named or _tagged(repository, image)
    login = login_to(reference.host, prefers_aws=named is None)
    registry = Registry(reference, login=login, is_plain=is_plain, ca=ca)
    done = PushedImage(reference, registry.push(image, on_progress))
    if named is not None:
        return done
    with where.connect() as cluster:  # anew: a push may outlast a connection
        record_image(cluster, done.by_digest)
        return replace(done, context=str(cluster.context))


def _cluster_repository(where: Where) -> tuple[str, Where]:
    """The repository of the current cluster, and that cluster by name: a push is long, and the context may change."""
    named = "`bireme image push IMAGE.tar REGISTRY/NAME:TAG`"
    if not (where.is_asked or has_cluster()):
        raise UsageError("which registry?", why="no cluster is configured here that has one", fix=named)
    with where.connect() as cluster:
        facts = read_facts(cluster)
        if facts is None or not facts.repository:
            raise UsageError(
                "which registry?",
                why=f"no ConfigMap {NAME} names one in the namespace {cluster.namespace} of context {cluster.context}",
                fix=f"{named}; a cluster of `bireme cluster up` has a repository",
            )
        return facts.repository, Where(cluster.context, cluster.namespace)


def _tagged(repository: str, image: Image) -> Reference:
    """Where an image goes in a repository: its own tag and a short digest, so that no push replaces another image."""
    tag = parse_reference(image.name).tag if image.name else "latest"
    short = image.digest.removeprefix("sha256:")[:12]
    return parse_reference(f"{repository}:{tag[:115]}-{short}")


def login_to(host: str, *, prefers_aws: bool) -> RegistryLogin | None:
    """The login for a registry, if any. Docker's logins for AWS expire after 12 hours, so AWS may come first."""
    aws = _ECR.fullmatch(host)
    login = None if aws and prefers_aws else find_login(host, config_files(os.environ, Path.home()))
    if login is not None or aws is None:
        return login
    from bireme.aws.access import registry_login

    return RegistryLogin(*registry_login(aws[1], host))
