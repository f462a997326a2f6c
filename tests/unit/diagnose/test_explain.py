"""`explain`: every row of the table on evidence that was recorded on a real cluster, and what the order is for.

The files in recorded/ were written by tests/kube/test_why*.py on the test cluster (BIREME_RECORD=1), those of local
runs from real runs on one machine; only fields that no code reads were left out.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.errors import ConfigScriptError
from bireme.diagnose.evidence import Evidence, evidence_from
from bireme.diagnose.explain import explain
from bireme.diagnose.table import LOOKS, DiagnosisRule, Look, Match, situations

RECORDED = {path.stem: path for path in sorted((Path(__file__).parent / "recorded").glob("*.json"))}
SITUATIONS = {
    "cancelled": "suspended",
    "claim-missing": "claim-unbound",
    "claim-without-class": "claim-unbound",
    "config-wrong": "config-error",
    "forbidden-to-pods": "forbidden",
    "gave-up": "crash-loop",
    "preempted": "disrupted",
    "quota-without-limits": "quota",
    "secret-not-mounted": "object-missing",
    "version-skew": "not-a-number",
    "webhook-silent": "admission",
}
"""What a recording shows first, where it is not named after that."""


def recorded(name: str) -> Evidence:
    return evidence_from(json.loads(RECORDED[name].read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_situation_is_recognised(name: str) -> None:
    assert explain(recorded(name))[0].situation == SITUATIONS.get(name, name)


@pytest.mark.parametrize("name", RECORDED)
def test_cause_and_advice_are_whole_sentences(name: str) -> None:
    for answer in explain(recorded(name)):
        for text in (answer.cause, answer.advice):
            # A sentence may begin with the name of a node or of an image.
            assert text.endswith(".") and not text.endswith("..")
            assert text[0].isupper() or text[0].isdigit() or text[0] in "'`" or text.split()[0] in ("n1", "n2", "n3")
            assert "  " not in text and "None" not in text and text.count("`") % 2 == 0


def test_a_selector_of_pods_with_a_role_may_be_their_groups() -> None:
    evidence = recorded("node-selector")
    assert "`kubernetes.groups`" not in explain(evidence)[0].advice
    pods = copy.deepcopy(evidence.pods)
    for pod in pods:
        pod["metadata"].setdefault("labels", {})["app.kubernetes.io/component"] = "trainer"
    answer = explain(replace(evidence, pods=pods))[0]
    assert answer.advice.startswith("Correct `kubernetes.node_selector` or `kubernetes.groups` in job.yaml and ")


VARIANTS = (
    (
        "admission",
        "ValidatingAdmissionPolicy 'why-team' with binding 'why-team' denied request: pods need the label team",
        r"admission webhook \"team.example\" denied the request",
        "The admission webhook team.example refuses the job's pods: it gives no reason.",
    ),
    (
        "class-missing",
        "no PriorityClass with name none-such was found",
        r"RuntimeClass \"gvisor\" not found",
        "The job asks for runtime class gvisor, which this cluster does not have.",
    ),
    (
        "evicted",
        r"Usage of EmptyDir volume \"x\" exceeds the limit \"1Mi\". ",
        "The node was low on resource: memory. ",
        "Raise `kubernetes.resources.requests.memory` to what a pod really uses,",
    ),
    (
        "evicted",
        r"Usage of EmptyDir volume \"x\" exceeds the limit \"1Mi\". ",
        "The node was low on resource: ephemeral-storage. ",
        "Free disk on n1 or keep pods off it (`kubectl cordon n1`), then submit it again",
    ),
    (
        "disrupted",
        '"reason": "EvictionByEvictionAPI"',
        '"reason": "TerminationByKubelet"',
        "ended by its node, which is shutting down or short of something (Eviction API: evicting).",
    ),
    ("claim-unbound", "storageclass.storage.k8s.io", "unknown", "and add a volume that fits, or ask for another size"),
    (
        "object-missing",
        r"secret \"nowhere\" not found",
        r"configmap \"nowhere\" not found",
        "The ConfigMap nowhere does not exist",
    ),
    (
        "object-missing",
        r"secret \"nowhere\" not found",
        "couldn't find key password in Secret why/nowhere",
        "The Secret nowhere has no key password, so pod",
    ),
    (
        "secret-not-mounted",
        r"secret \"nowhere-tls\" not found",
        "references non-existent secret key: tls.crt",
        "The Secret that it mounts has no key tls.crt, so pod",
    ),
    (
        "secret-not-mounted",
        r"secret \"nowhere-tls\" not found",
        "references non-existent config key: a.yaml",
        "The ConfigMap that it mounts has no key a.yaml, so pod",
    ),
    (
        "own-error",
        '"kind": "ProcessError", "what": "',
        '"kind": "StorageError", "what": "no space left: ',
        "The disk is f",
    ),
    (
        "own-error",
        '"kind": "ProcessError", "what": "',
        '"kind": "StorageError", "what": "cannot write: ',
        "The volume cannot be written to: cannot write",
    ),
    ("died-here", '"state": "died"', '"state": "finished"', "Its models are in died-here-out."),
    (
        "own-error",
        '"kind": "ProcessError", "what": "',
        f'"kind": "ConfigScriptError", "what": "{ConfigScriptError.IN_DATA} ',
        "Provider and data do not suit each other: ",
    ),
)
"""Recordings with another message in them, for the ways to recognise a situation that were not met for real."""


@pytest.mark.parametrize(("name", "old", "new", "expected"), VARIANTS)
def test_another_message_has_another_sentence(name: str, old: str, new: str, expected: str) -> None:
    first = explain(with_another_message(name, old, new))[0]
    assert expected in f"{first.cause} {first.advice}"


def with_another_message(name: str, old: str, new: str) -> Evidence:
    text = RECORDED[name].read_text(encoding="utf-8")
    assert old in text
    return evidence_from(json.loads(text.replace(old, new)))


def test_every_rule_has_an_example_and_every_look_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {id(rule): f"{row.id}: {rule.cause}" for row in situations() for rule in (row, *row.also)}
    for look in {rule.look for row in situations() for rule in (row, *row.also)}:
        find = LOOKS[look]

        def remember(evidence: Evidence, rule: DiagnosisRule, find: Look = find) -> list[Match]:
            matches = list(find(evidence, rule))
            if matches:
                rules.pop(id(rule), None)
            return matches

        monkeypatch.setitem(LOOKS, look, remember)
    for name in RECORDED:
        explain(recorded(name))
    for name, old, new, _ in VARIANTS:
        explain(with_another_message(name, old, new))
    assert not rules
    assert set(LOOKS) == {rule.look for row in situations() for rule in (row, *row.also)}


def test_every_row_was_seen_for_real() -> None:
    seen = {answer.situation for name in RECORDED for answer in explain(recorded(name))}
    ids = [row.id for row in situations()]
    assert set(ids) - seen == set()
    assert len(ids) >= 25 and len(set(ids)) == len(ids)


def test_what_a_cause_explains_is_not_reported_again() -> None:
    causes = explain(recorded("out-of-memory"))
    assert [c.situation for c in causes if c.about == causes[0].about] == ["out-of-memory"]
    assert "crash-loop" not in {c.situation for c in causes}
    assert [c.situation for c in explain(recorded("quota"))] == ["quota"]


@pytest.mark.parametrize(("count", "is_reported"), [(1, False), (3, True)])
def test_a_pod_ended_after_three_failed_probes_is_reported(count: int, is_reported: bool) -> None:
    evidence = recorded("probe-failed")
    events = []
    for event in copy.deepcopy(evidence.events):
        if event["reason"] == "Killing":
            event["message"] = "Stopping container node"
        if event["reason"] == "Unhealthy":
            event["count"] = count
        events.append(event)
    answers = {each.situation for each in explain(replace(evidence, events=tuple(events)))}
    assert ("probe-failed" in answers) is is_reported


def test_a_finished_job_has_no_causes_from_its_past() -> None:
    evidence = recorded("out-of-memory")
    job = copy.deepcopy(evidence.jobs[0])
    job["status"]["conditions"] = [{"type": "Complete", "status": "True"}]
    assert [t.situation for t in explain(replace(evidence, jobs=(job,)))] == ["finished"]


def test_a_failed_pod_is_history_once_its_replacement_is_ready() -> None:
    evidence = recorded("out-of-memory")
    job = {**evidence.jobs[0], "status": {"active": 1}}
    dead = evidence.pods[0]
    alive = copy.deepcopy(dead)
    alive["metadata"] |= {"name": "out-of-memory-0-fresh", "creationTimestamp": "2999-01-01T00:00:00Z"}
    alive["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    assert explain(replace(evidence, jobs=(job,), pods=(dead,)))[0].situation == "out-of-memory"
    assert explain(replace(evidence, jobs=(job,), pods=(dead, alive)))[0].situation == "no-word-yet"


def test_a_past_event_is_not_shown_once_the_pods_are_there() -> None:
    evidence = recorded("quota")
    live = tuple({"metadata": {"name": f"quota-{n}"}, "status": {"phase": "Running"}} for n in range(3))
    assert "quota" not in {t.situation for t in explain(replace(evidence, pods=live))}


def test_older_schedulers_name_the_taint_themselves() -> None:
    evidence = recorded("taint")
    pod = copy.deepcopy(evidence.pods[0])
    for condition in pod["status"]["conditions"]:
        if condition["type"] == "PodScheduled":
            condition["message"] = "0/2 nodes are available: 2 node(s) had untolerated taint {team: red}. preemption: …"
    answer = explain(replace(evidence, pods=(pod,), nodes=()))[0]
    assert answer.situation == "taint" and "taint team=red" in answer.cause


def test_several_reasons_are_reported_each_with_its_nodes() -> None:
    evidence = recorded("too-little-cpu")
    pod = copy.deepcopy(evidence.pods[0])
    for condition in pod["status"]["conditions"]:
        if condition["type"] == "PodScheduled":
            condition["message"] = "0/5 nodes are available: 2 Insufficient memory, 3 Insufficient cpu. preemption: …"
    answers = explain(replace(evidence, pods=(pod,)))
    assert [t.situation for t in answers] == ["too-little-cpu", "too-little-memory"]
    assert "3 of 5 nodes" in answers[0].cause and "2 of 5 nodes" in answers[1].cause


def test_a_job_that_ended_itself_is_not_out_of_time() -> None:
    evidence = recorded("deadline")
    job = copy.deepcopy(evidence.jobs[0])
    error = {"kind": "SpecError", "what": "no layer has a parameter", "why": "", "fix": ""}
    status = json.dumps({"phase": "failed", "error": error})
    job["metadata"].setdefault("annotations", {})["bireme.dev/status"] = status
    assert [t.situation for t in explain(replace(evidence, jobs=(job,)))] == ["config-error"]


def test_a_provider_that_fails_is_no_wrong_configuration() -> None:
    evidence = recorded("config-wrong")
    job = copy.deepcopy(evidence.jobs[0])
    why = f"{ConfigScriptError.IN_DATA} data/train/part-0, after 17 samples: one of the two does not suit the other"
    error = {"kind": "ConfigScriptError", "what": "reviews.py:9: ValueError: 'five'", "why": why, "fix": ""}
    status = json.dumps({"phase": "failed", "error": error})
    job["metadata"].setdefault("annotations", {})["bireme.dev/status"] = status
    answer = explain(replace(evidence, jobs=(job,)))[0]
    assert answer.cause.startswith(
        "Provider and data do not suit each other: reviews.py:9: ValueError: 'five', and the"
    )
    assert answer.advice == "Look at that place of the file, and correct it or the provider."


def test_a_claim_that_may_not_be_seen_is_not_called_missing() -> None:
    evidence = recorded("claim-missing")
    assert "does not exist" in explain(evidence)[0].cause
    denied = {"verb": "list", "resource": "persistentvolumeclaims", "message": "", "needed": False}
    answers = explain(replace(evidence, denied=(denied,)))
    assert answers and not any("does not exist" in t.cause for t in answers)


def test_a_number_within_a_digest_is_no_refusal() -> None:
    text = RECORDED["image-not-found"].read_text(encoding="utf-8")
    image = str(recorded("image-not-found").pods[0]["spec"]["containers"][0]["image"])
    evidence = evidence_from(json.loads(text.replace(image, f"{image}@sha256:ab401cd403")))
    assert explain(evidence)[0].situation == "image-not-found"


def test_a_plain_job_of_others_gets_an_answer_too() -> None:
    plain = {"metadata": {"name": "other"}, "spec": {"parallelism": 1}, "status": {"active": 1}}
    assert explain(Evidence(job="other", namespace="x", jobs=(plain,)))[0].situation == "waiting-for-pods"


@given(data=st.data())
def test_no_fact_that_is_missing_or_strange_makes_it_fail(data: st.DataObject) -> None:
    plain = json.loads(RECORDED[data.draw(st.sampled_from(sorted(RECORDED)))].read_text(encoding="utf-8"))
    for _ in range(data.draw(st.integers(1, 4))):
        _break(data, plain)
    answers = explain(evidence_from({**plain, "job": "j"}))
    assert answers and all(t.cause and t.advice for t in answers)


def _break(data: st.DataObject, thing: Any) -> None:
    """Take away, or empty, one thing somewhere below, as an older or younger API server might."""
    while True:
        keys = list(thing) if isinstance(thing, dict) else list(range(len(thing)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        below = thing[key]
        if isinstance(below, dict | list) and below and data.draw(st.booleans()):
            thing = below
            continue
        if isinstance(below, dict | list):
            thing[key] = type(below)()
        elif isinstance(below, str) and isinstance(thing, dict):
            thing[key] = "" if "ime" not in key else None
        return
