"""Processes of the job that do not find, do not reach, or wait for each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bireme.diagnose.facts import (
    Cause,
    Facts,
    Json,
    is_ready,
    last_words,
    name_of,
    plain_line,
    situation,
    status_of,
    troubled,
)
from bireme.diagnose.training import about_end, own_error
from bireme.diagnose.words import kubectl, listed, names, node_of, sentence

DNS = r"(?i)does not resolve|name or service not known|temporary failure in name resolution|no address associated"


BLOCKED = r"(?i)does not answer|timed out|no route to host|connection refused|has not announced itself"


def _network_words(facts: Facts) -> str:
    """All messages about peers: the error, what the coordinator waits for, and pods' last lines."""
    error, status = own_error(facts), status_of(facts)
    said = (
        [f"{error['what']} {error['why']}"] if error and error["kind"] in ("NetworkError", "ProcessError", "") else []
    )
    said += (
        [str(w) for w in status.get("waits_for") or ()] if status.get("phase") in ("gathering", "setting-up") else []
    )
    if not said:
        said = [text for p in troubled(facts) if not is_ready(p) for text in last_words(facts, p)]
    return "\n".join(said)


def _line(words: str, pattern: str) -> str:
    return next((sentence(plain_line(line)) for line in words.splitlines() if re.search(pattern, line)), "")


@situation("name-not-found", "A pod's name does not resolve", "the job says that a peer's name does not resolve")
def name_not_found(facts: Facts) -> Iterator[Cause]:
    """DNS does not know a pod: no Service, no DNS server, or a pod that has no address yet."""
    line = _line(_network_words(facts), DNS)
    if line:
        yield Cause(
            f"Pods cannot find each other by name: {line}.",
            f"Check that the job's Service is there ({kubectl(facts, 'get service,endpointslices')}) and"
            " that the cluster's DNS runs (`kubectl -n kube-system get pods -l k8s-app=kube-dns`).",
            about_end(facts),
        )


@situation(
    "port-blocked", "Pods do not reach each other", "the job says that a peer does not answer although its pod runs"
)
def port_blocked(facts: Facts) -> Iterator[Cause]:
    """Names are known and connections fail: a network policy, a firewall, or a cut between nodes."""
    words = _network_words(facts)
    line = _line(words, BLOCKED)
    running = [p for p in facts.pods if (p.get("status") or {}).get("phase") == "Running"]
    if line and not re.search(DNS, words) and len(running) > 1 and "has not announced itself" not in line:
        nodes = sorted({node_of(p) for p in running if node_of(p)})
        between = f" between {listed(nodes)}" if len(nodes) > 1 else ""
        yield Cause(
            f"Pods run but do not reach each other: {line}.",
            f"Look for a NetworkPolicy or firewall that closes the job's ports{between} "
            f"({kubectl(facts, 'get networkpolicies')}), and open them for pods of the job.",
            about_end(facts),
        )


@situation("slow-trainer", "A trainer is slower than the others", "the job trains, and its status waits for a trainer")
def slow_trainer(facts: Facts) -> Iterator[Cause]:
    """Rounds wait for the slowest."""
    yield from _slow(facts, "trainer")


@situation("slow-pserver", "A pserver is slow or says nothing", "the job trains, and its status waits for a pserver")
def slow_pserver(facts: Facts) -> Iterator[Cause]:
    """Rounds wait for a pserver."""
    yield from _slow(facts, "pserver")


def _slow(facts: Facts, role: str) -> Iterator[Cause]:
    status = status_of(facts)
    slow = [
        str(w) for w in [*(status.get("waits_for") or ()), *(status.get("stragglers") or ())] if str(w).startswith(role)
    ]
    if status.get("phase") != "training" or not slow or _is_over(facts):
        return
    first = slow[0]
    pod = _pod_of(facts, role, first)
    rates = [float(t["rate"]) for t in status.get("trainers") or () if t.get("rate")]
    speed = f" ({sum(rates):,.0f} samples/s in all)" if rates else ""
    where = f", pod {name_of(pod)} on {node_of(pod)}" if pod else ""
    look = f" ({kubectl(facts, f'top pod {name_of(pod)}')}, `kubectl describe node {node_of(pod)}`)" if pod else ""
    has_pserver = role == "pserver" or (pod and "-trainer-" not in name_of(pod))
    cost = "the job goes on from its last snapshot" if has_pserver else "no work is lost"
    yield Cause(
        f"The job waits for {first}{where}{speed}.",
        f"Look whether its {'node' if pod else 'machine'} is busy with something else{look}; "
        f"{'deleting the pod moves it, and' if pod else 'it can be killed:'} {cost}.",
        names([pod]) if pod else (),
    )


def _is_over(facts: Facts) -> bool:
    return facts.where == "local" and facts.record.get("state") != "running"


def _pod_of(facts: Facts, role: str, words: str) -> Json:
    """The pod that runs a process such as `trainer 1`: the one with that index, of the Job with that role."""
    rank = re.match(rf"{role} (\d+)", words)
    if not rank:
        return {}
    both = [p for p in facts.pods if re.search(rf"-{rank[1]}-[a-z0-9]{{5}}$", name_of(p)) and is_live(p)]
    apart = [p for p in both if f"-{role}-" in name_of(p)]
    return next(iter(apart or both), {})


def is_live(pod: Json) -> bool:
    """Whether a pod runs."""
    return (pod.get("status") or {}).get("phase") == "Running"
