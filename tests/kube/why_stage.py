"""Small Jobs that are in trouble on purpose, on the real cluster, and what `why` says about them.

With BIREME_RECORD=1 the facts of each are also written to tests/unit/diagnose/recorded/, without unused fields, so
that the same situations are looked at again where there is no cluster.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
import uuid
from pathlib import Path
from typing import Any, Self

from tools.kube.machine import wait_for
from tools.kube.running import RunningCluster

from bireme.diagnose.evidence import Cause, Evidence
from bireme.diagnose.explain import explain
from bireme.diagnose.gather import gather
from bireme.kube.api.client import Cluster
from bireme.kube.api.fields import name_of
from bireme.kube.api.kubeconfig import KubeTarget

Json = dict[str, Any]
IMAGE = "localhost/busybox:1"
RECORDED = Path(__file__).parents[1] / "unit/diagnose/recorded"
PATIENCE_S = 240.0
NOISE = re.compile(
    r"managedFields|resourceVersion|generation|ownerReferences|generateName|hostIPs?|podIPs?|qosClass|containerID|imageID|"
    r"terminationMessage\w+|dnsPolicy|schedulerName|selector|firstTimestamp|source|reporting\w+|uid|preemptionPolicy|"
    r"enableServiceLinks|observedGeneration|volumeMounts|last(Probe|Heartbeat)Time|action|(system|machine)UUID|machineID|"
    r"bootID|osImage|kernelVersion|daemonEndpoints|images|podCIDRs?|capacity|runtimeHandlers|features|env|template|user|"
    r"allocatedResources|started|uncountedTerminatedPods|addresses|apiVersion|resourceFieldRef|hugepages-.*|probes?|"
    r"(liveness|readiness|startup)Probe|manualSelector|hostname|subdomain|serviceAccount|fieldPath|uuid|priority|kube\w+Version|"
    r"containerRuntimeVersion|operatingSystem|ephemeral-storage|.*controller-uid|.*last-applied.*|node\.alpha.*|volumes\..*|"
    r"beta\..*|topology\..*|swap|terminating|finalizers|topologySpreadConstraints|batch\.kubernetes\.io/cronjob.*"
)


def record(situation: str, facts: Evidence) -> None:
    """Keep facts for the tests that need no cluster, if that was asked for: one object a line."""
    if os.environ.get("BIREME_RECORD") != "1":
        return
    plain = {key: _clean(value) for key, value in dataclasses.asdict(facts).items()}
    plain = {key: value for key, value in plain.items() if value and (key != "others" or not facts.jobs)}
    lines = [f"{json.dumps(key)}: {_lines(value)}" for key, value in plain.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    RECORDED.mkdir(parents=True, exist_ok=True)
    text = text.replace(facts.namespace, re.sub(r"-[0-9a-f]{6}$", "", facts.namespace))
    (RECORDED / f"{situation}.json").write_text(text, encoding="utf-8")


def _lines(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(json.dumps(v, ensure_ascii=False) for v in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {k: _clean(v) for k, v in value.items() if not NOISE.fullmatch(k)}
        return {k: v for k, v in kept.items() if v not in ({}, [], None)}
    if isinstance(value, list | tuple):
        return [_clean(v) for v in value if not (isinstance(v, dict) and _is_noise(v))]
    return value


def _is_noise(thing: Json) -> bool:
    is_token = str(thing.get("name", "")).startswith("kube-api-access")
    is_pressure = str(thing.get("type", "")).endswith("Pressure") and thing.get("status") == "False"
    return (
        is_token
        or is_pressure
        or (thing.get("key", "").startswith("node.kubernetes.io/") and "tolerationSeconds" in thing)
    )


def job(
    name: str, *, run: str = "sleep 3600", container: Json | None = None, pod: Json | None = None, **spec: Any
) -> Json:
    """A Job of one pod unless `spec` says otherwise; `labels` are the Job's own."""
    labels = spec.pop("labels", {})
    main = {
        "name": "node",
        "image": IMAGE,
        "command": ["sh", "-c", run],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **(container or {}),
    }
    count = spec.get("parallelism", 1)
    template = {
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [main], **(pod or {})}
    }
    whole = {"completionMode": "Indexed", "parallelism": count, "completions": count, "template": template}
    if "backoffLimitPerIndex" not in spec:
        whole["backoffLimit"] = 0
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/instance": name, **labels}},
        "spec": {**whole, **spec},
    }


def asks(**amounts: str) -> Json:
    """A container that asks for something."""
    return {"resources": {"requests": amounts, "limits": amounts}}


class Stage:
    """A namespace of the cluster, and what `why` says there."""

    def __init__(self, running: RunningCluster, namespace: str, labels: Json | None = None) -> None:
        self.running = running
        # A namespace of an earlier run may still be on its way out.
        self.name, self.namespace = namespace, f"{namespace}-{uuid.uuid4().hex[:6]}"
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace, "labels": labels or {}}}
        running.apply(made)
        wait_for("the default service account", self._has_account, seconds=60)
        self.cluster = Cluster(KubeTarget([running.kubeconfig], namespace=self.namespace))

    def _has_account(self) -> bool:
        found = self.running.get("serviceaccounts", "-n", self.namespace)["items"]
        return any(name_of(account) == "default" for account in found)

    def apply(self, *objects: Json) -> None:
        """Apply objects in this namespace; those of the whole cluster do not mind."""
        self.running.apply(*({**o, "metadata": {**o["metadata"], "namespace": self.namespace}} for o in objects))

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Run kubectl in this namespace."""
        return self.running.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def facts(self, name: str) -> Evidence:
        """What is known now."""
        return dataclasses.replace(gather(self.cluster, name, time.time()), version="0.1.0")

    def until(self, situation: str, name: str = "", *, said: str = "", place: int = 0, keep: str = "") -> Cause:
        """Ask until `why` has this situation (and these words in its cause); then it must come first, or at a place."""
        name = name or situation
        seen: list[tuple[Evidence, list[Cause]]] = []

        def is_shown() -> bool:
            facts = self.facts(name)
            seen.append((facts, explain(facts)))
            return any(c.situation == situation and said in c.cause for c in seen[-1][1])

        try:
            wait_for(f"`why {name}` to say {situation}", is_shown, seconds=PATIENCE_S, every=0.3)
        except Exception as e:
            raise AssertionError(f"{e}; it says {seen[-1][1] if seen else 'nothing'}") from e
        facts, causes = seen[-1]
        record(keep or name, facts)
        assert causes[place].situation == situation, causes
        return causes[place]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the namespace away without waiting for it."""
        self.cluster.__exit__()
        self.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")
        self.running.kubectl("delete", "namespace", self.namespace, "--wait=false", "--ignore-not-found")
