"""A second reading of CloudFormation: `ministack`, an emulator that other people wrote, beside our own double.

Both are reached through the product's `Aws`. `Double` and `Ministack` give one each; `reduced` cuts a template down to
the types that both know; `History` is what a stack's events say, in a form that can be compared.
"""

from __future__ import annotations

import copy
import fcntl
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import botocore.session
from botocore.config import Config

from bireme.aws.client import Aws
from bireme.aws.cloudformation.stacks import events_of
from tests.aws.double import VirtualClock, World, attach
from tests.aws.double.model import KINDS
from tests.aws.stage import LOADER

REGION = "us-west-2"
VERSION = "1.5.33"
STACK = "AWS::CloudFormation::Stack"
START_S = 60.0
MINISTACK_TYPES = frozenset(
    f"AWS::{each}"
    for each in (
        "EC2::InternetGateway", "EC2::LaunchTemplate", "EC2::Route", "EC2::RouteTable", "EC2::SecurityGroup",
        "EC2::Subnet", "EC2::SubnetRouteTableAssociation", "EC2::VPC", "EC2::VPCEndpoint", "EC2::VPCGatewayAttachment",
        "ECR::Repository", "EFS::AccessPoint", "EFS::FileSystem", "EFS::MountTarget", "EKS::Cluster", "EKS::Nodegroup",
        "IAM::Role", "Logs::LogGroup", "Route53::HostedZone", "Route53::RecordSet",
    )
)  # fmt: skip
"""Types of our templates that this version of ministack makes; it refuses a template with any other."""
SHARED_TYPES = MINISTACK_TYPES & {name for name, kind in KINDS.items() if kind.in_templates}


# --- the two accounts -----------------------------------------------------------------------------------------------


class Double:
    """An account in our own double, in virtual time."""

    name = "double"

    def __init__(self) -> None:
        self.world = World(seed=0, clock=VirtualClock(), region=REGION)

    def aws(self) -> Aws:
        def session() -> Any:
            made = _session()
            attach(made, self.world)
            return made

        return Aws(REGION, self.world.clock, session)


class _ShortClock(VirtualClock):
    """Time as the tool sees it while ministack works: it makes things at once, so a short pause stands for a long one.

    The pauses add up as if they were real; a stack that never shows up is given up after as many looks as ever.
    """

    def sleep(self, seconds: float) -> None:
        time.sleep(0.02)
        self.advance(seconds)


class Ministack:
    """A ministack server of our own: a process on 127.0.0.1, stopped when the block ends. A context manager."""

    name = "ministack"

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="bireme-witness-")
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Ministack:
        packages = _installed()
        try:
            # The port is free when it is chosen, and may be taken when ministack binds it.
            while not self._start(packages):
                self._stop()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._close()

    def _close(self) -> None:
        self._stop()
        self._home.cleanup()

    def _start(self, packages: Path) -> bool:
        """Start the server; False if another process has taken its port."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        home = Path(self._home.name)
        self.url = f"http://127.0.0.1:{port}"
        # Nothing of this user's environment: no credentials, no proxy, and no Docker, which ministack would use.
        env = {
            "PATH": os.defpath, "HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": str(packages),
            "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "MINISTACK_REGION": REGION,
            "DOCKER_HOST": f"unix://{home}/no-docker", "S3_DATA_DIR": str(home / "s3"), "LOG_LEVEL": "WARNING",
        }  # fmt: skip
        log = home / "log"
        with log.open("wb") as out:
            # -S: without the packages of this environment, whose botocore is another one.
            command = [sys.executable, "-S", "-m", "ministack"]
            self._process = subprocess.Popen(command, cwd=home, env=env, stdout=out, stderr=out)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                direct.open(f"{self.url}/_ministack/health", timeout=5).close()
                return True
            except OSError:
                time.sleep(0.05)
        text = log.read_text(errors="replace")
        if "ddress already in use" in text:
            return False
        raise RuntimeError(f"ministack {VERSION} did not start:\n{text[-4000:]}")

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def aws(self) -> Aws:
        return Aws(REGION, _ShortClock(), lambda: _At(_session(), self.url))


@dataclass
class _At:
    """A session whose clients speak to one address."""

    session: Any
    url: str

    def client(self, service: str, **more: Any) -> Any:
        more["config"] = more["config"].merge(Config(proxies={}))
        return self.session.client(service, endpoint_url=self.url, **more)


def _session() -> Any:
    core = botocore.session.Session()
    core.register_component("data_loader", LOADER)
    return boto3.Session(aws_access_key_id="test", aws_secret_access_key="test", botocore_session=core)


def _installed() -> Path:
    """The folder of ministack's packages, filled on first use.

    It is no part of the `dev` extra: it demands one exact botocore, and the product is to be tested with the newest.
    """
    folder = Path(sys.prefix) / f"witness-{VERSION}"
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of pytest-xdist come here at the same time
        if not folder.exists():
            half = folder.with_name(f"{folder.name}.half")
            shutil.rmtree(half, ignore_errors=True)
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]
            done = subprocess.run([*pip, half, f"ministack=={VERSION}"], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"cannot install ministack {VERSION}:\n{done.stderr}")
            half.rename(folder)
    return folder


# --- templates ------------------------------------------------------------------------------------------------------


def references(value: Any) -> Iterator[str]:
    """The names that a value refers to by Ref, Fn::GetAtt and Fn::Sub."""
    if isinstance(value, list):
        for part in value:
            yield from references(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            if key == "Ref":
                yield part
            elif key == "Fn::GetAtt":
                yield part.partition(".")[0] if isinstance(part, str) else part[0]
            elif key == "Fn::Sub" and isinstance(part, str):
                yield from (name.partition(".")[0] for name in re.findall(r"\$\{([^!}][^}]*)\}", part))
            else:
                yield from references(part)


def needs(template: Mapping[str, Any]) -> dict[str, set[str]]:
    """For each resource, those that CloudFormation must make before it."""
    resources = template["Resources"]
    found = {}
    for name, resource in resources.items():
        after = resource.get("DependsOn", [])
        named = {*references(resource.get("Properties", {})), *([after] if isinstance(after, str) else after)}
        found[name] = named & set(resources)
    return found


def reduced(template: Mapping[str, Any], known: Iterable[str] = SHARED_TYPES) -> dict[str, Any]:
    """The template without resources of unknown types, and without everything that refers to one of them."""
    made, types = copy.deepcopy(dict(template)), frozenset(known)
    needed = needs(made)
    gone = {name for name, each in made["Resources"].items() if each["Type"] not in types}
    while more := {name for name, others in needed.items() if others & gone} - gone:
        gone |= more
    for block in ("Resources", "Outputs"):
        parts = made.get(block, {})
        made[block] = {k: v for k, v in parts.items() if k not in gone and not set(references(v)) & gone}
    return {name: section for name, section in made.items() if section}


# --- what happened --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """The events of one stack over its whole life."""

    stack: tuple[str, ...]
    """Its states, each once in a row."""
    resources: Mapping[str, tuple[str, ...]]
    """The states of each of its resources, likewise."""
    order: tuple[tuple[str, str], ...]
    """(resource, state) in order of time."""

    @classmethod
    def of(cls, aws: Aws, id_: str) -> History:
        stack: list[str] = []
        resources: dict[str, list[str]] = {}
        order = []
        for event in events_of(aws, id_):
            states = stack if event.kind == STACK else resources.setdefault(event.resource, [])
            if states[-1:] != [event.status]:
                states.append(event.status)
                order.append((event.resource, event.status))
        return cls(tuple(stack), {name: tuple(states) for name, states in sorted(resources.items())}, tuple(order))

    def out_of_order(self, template: Mapping[str, Any]) -> list[str]:
        """Resources that were begun before one they need was made, or deleted while one that needs them was there."""
        at = {each: i for i, each in enumerate(self.order)}
        wrong = []
        for name, others in needs(template).items():
            for other in sorted(others):
                begun, made = at.get((name, "CREATE_IN_PROGRESS")), at.get((other, "CREATE_COMPLETE"))
                if begun is not None and (made is None or made > begun):
                    wrong.append(f"{name} was begun before {other} was made")
                begun, gone = at.get((other, "DELETE_IN_PROGRESS")), at.get((name, "DELETE_COMPLETE"))
                if begun is not None and gone is not None and gone > begun:
                    wrong.append(f"{other} was deleted before {name}")
        return wrong
