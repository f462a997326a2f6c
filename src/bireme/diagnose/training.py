"""The job's own errors, from its status or the end of a pod's log.

An error of bireme has a kind (the names of core/errors), what happened, why and a fix; a log loses the kind, and the
exit code restores it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bireme.core import errors
from bireme.core.text import duration
from bireme.diagnose.facts import (
    Cause,
    Facts,
    Json,
    ended_states,
    error_of,
    last_words,
    name_of,
    situation,
    status_of,
    troubled,
)
from bireme.diagnose.words import AGAIN, bireme, capital, kubectl, listed, names, sentence

FULL = r"(?i)disk is full|no space left|disk quota exceeded"
UNWRITABLE = r"(?i)permission denied|read-only file system|operation not permitted|cannot write"
EXPIRED = r"(?i)certificate (?:has |is )?expired|certificate_expired|tls\.crt expired"
_KINDS = {
    cls.exit_code: name
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, errors.BiremeError) and cls.__base__ is errors.BiremeError
}
"""Every class of error by its exit code."""
_WORDS = {
    "NumericError": "NaN or infinity",
    "StorageError": f"{FULL}|cannot write",
    "DataError": r"^.*shard \d+.*missing",
}
"""Kinds by message, where both the kind and the exit code are missing."""


def own_error(facts: Facts) -> Json:
    """The job's error with its kind; empty while it has reported none."""
    error = error_of(facts)
    if not error:
        return {}
    codes = [int(s.get("exitCode") or 0) for p in troubled(facts) for s in ended_states(p)]
    by_words = (kind for kind, pattern in _WORDS.items() if re.search(pattern, str(error["what"])))
    kind = error.get("kind") or next((_KINDS[c] for c in codes if c in _KINDS), "") or next(by_words, "")
    return {"what": "", "why": "", "fix": "", **error, "kind": str(kind)}


def about_end(facts: Facts) -> tuple[str, ...]:
    """The job itself, and the pods that ended with it."""
    return (facts.job, *names(p for p in troubled(facts) if any(True for _ in ended_states(p))))


def _matches(error: Json, *kinds: str, pattern: str = "", but: str = r"(?!)") -> bool:
    words = f"{error.get('what', '')} {error.get('why', '')}"
    return bool(error) and error["kind"] in kinds and bool(re.search(pattern, words)) and not re.search(but, words)


def _cause(error: Json, head: str) -> str:
    why = f", and {sentence(error['why'])}" if error["why"] else ""
    return f"{head}: {sentence(error['what'])}{why}."


def _advice(error: Json, otherwise: str) -> str:
    fix = capital(sentence(str(error["fix"])))
    return (fix if fix.endswith("?") else f"{fix}.") if fix else otherwise


@situation(
    "config-error",
    "The job file or the config is wrong",
    "the job's error is a `SpecError` or a `ConfigScriptError`, or a pod ended with exit code 3 or 4",
)
def config_error(facts: Facts) -> Iterator[Cause]:
    """The user's own file fails."""
    error = own_error(facts)
    if _matches(error, "SpecError", "ConfigScriptError"):
        again = AGAIN if facts.where == "kubernetes" else "start it again"
        check = f"`{facts.command} train JOB.yaml --dry-run` checks the file here before you {again}."
        is_in_data = str(error["why"]).startswith(errors.ConfigScriptError.IN_DATA)
        if is_in_data:
            check = "Look at that place of the file, and mend it or the provider."
        fix = _advice(error, check)
        advice = f"{fix} {check}" if fix.endswith("?") else fix
        head = "Provider and data do not suit each other" if is_in_data else "The job's configuration is wrong"
        yield Cause(_cause(error, head), advice, about_end(facts))


@situation(
    "data-missing",
    "Training data is missing or wrong",
    "the job's error is a `DataError`, or a pod ended with exit code 5",
)
def data_missing(facts: Facts) -> Iterator[Cause]:
    """A shard is missing or malformed."""
    error = own_error(facts)
    if _matches(error, "DataError"):
        where = (
            f"send the shards with `{facts.command} data push JOB.yaml`"
            if facts.where == "kubernetes"
            else (f"`{facts.command} data check` shows what is wrong with a shard")
        )
        fix = sentence(str(error["fix"]))
        is_enough = not fix or "data push" in fix
        advice = f"{capital(fix or where)}." if is_enough else f"{capital(fix)}; or {where}."
        yield Cause(_cause(error, "Training data is missing or not what the program expects"), advice, about_end(facts))


@situation("not-a-number", "The training has gone astray: NaN or infinity", "the job's error is a `NumericError`")
def not_a_number(facts: Facts) -> Iterator[Cause]:
    """A gradient or the cost is not a number any more."""
    error = own_error(facts)
    if _matches(error, "NumericError"):
        otherwise = "Lower the learning rate or clip gradients, then go on from the last pass."
        yield Cause(_cause(error, "The training has gone astray"), _advice(error, otherwise), about_end(facts))


@situation(
    "disk-full",
    "The volume is full",
    "the job's error is a `StorageError` about a full disk, or a log says `No space left`",
)
def disk_full(facts: Facts) -> Iterator[Cause]:
    """Snapshots and models find no room."""
    error, claim = own_error(facts), _claim(facts)
    if _matches(error, "StorageError", "ProcessError", "", pattern=FULL):
        on = f" of claim {claim}" if claim else ""
        more = f" or enlarge it ({kubectl(facts, f'edit pvc {claim}')})" if claim else ""
        yield Cause(
            _cause(error, f"The volume{on} is full" if claim else "The disk is full"),
            f"Make room there{more}, then {bireme(facts, 'resume')}; nothing already saved was touched. Of the job's "
            "own files leave the snapshots: it goes on from the newest.",
            about_end(facts),
        )


def _claim(facts: Facts) -> str:
    for pod in facts.pods:
        for volume in (pod.get("spec") or {}).get("volumes") or ():
            if volume.get("persistentVolumeClaim"):
                return str(volume["persistentVolumeClaim"]["claimName"])
    return ""


@situation(
    "not-writable",
    "The volume cannot be written to",
    "the job's error is a `StorageError` with `Permission denied` or `Read-only file system`",
)
def not_writable(facts: Facts) -> Iterator[Cause]:
    """Pods run as user 1000; the volume belongs to another user, or is read-only."""
    error, claim = own_error(facts), _claim(facts)
    if _matches(error, "StorageError", pattern=UNWRITABLE, but=FULL):
        own = _user(facts)
        advice = _advice(error, "Choose a directory that you may write to.")
        if facts.where == "kubernetes":
            advice = (
                f"Let user {own} write there (`chown -R {own}` or `chmod a+rwX` on the volume), or use a storage class "
                f"that keeps `fsGroup`, then {bireme(facts, 'resume')}."
            )
        yield Cause(
            _cause(error, f"The volume{f' of claim {claim}' if claim else ''} cannot be written to"),
            advice,
            about_end(facts),
        )


def _user(facts: Facts) -> str:
    context = ((facts.pods[0].get("spec") or {}) if facts.pods else {}).get("securityContext") or {}
    return str(context.get("runAsUser", 1000))


@situation(
    "certificate-expired",
    "The job's certificate has expired",
    "the certificate in the Secret `JOB-tls` is past its end, or the job says so",
)
def certificate_expired(facts: Facts) -> Iterator[Cause]:
    """New connections are refused."""
    until = float(facts.certificate.get("not_after") or 0.0)
    error = own_error(facts)
    is_said = bool(error) and re.search(EXPIRED, f"{error['what']} {error['why']}")
    if (until and facts.now > until) or is_said:
        ago = f" {duration(facts.now - until)} ago" if until and facts.now > until else ""
        yield Cause(
            f"The certificate by which the job's pods know each other expired{ago}, so new connections are refused.",
            f"Submit the job's file again, which renews it (`{facts.command} submit JOB.yaml`); raise "
            "`kubernetes.certificate_days` for long jobs.",
            about_end(facts),
        )


@situation("forbidden", "A permission is missing", "the API server answers 403 to the job's pods or to this command")
def forbidden(facts: Facts) -> Iterator[Cause]:
    """RBAC refuses a request of this command or of the job."""
    ours = [d for d in facts.denied if d.get("needed")]
    if ours:
        what = listed(f"{d['verb']} {d['resource']}" for d in ours)
        yield Cause(
            f"You may not {what} in namespace {facts.namespace}: {sentence(str(ours[0].get('message', '')))}.",
            f"Ask for these permissions (`{facts.command} submit --permissions` lists all), then try again.",
        )
    pattern = r'is forbidden: User "([^"]+)" cannot (\w+) resource "([^"]+)"'
    for pod in facts.pods:
        match = next((f for text in last_words(facts, pod) if (f := re.search(pattern, text))), None)
        if match:
            yield Cause(
                f"The account {match[1].removeprefix('system:serviceaccount:')}, as which {name_of(pod)} runs, may not "
                f"{match[2]} {match[3]}.",
                f"Submit the job again, which gives its own account what it needs, or grant it to that one "
                f"({kubectl(facts, 'get role,rolebinding')}).",
                (name_of(pod),),
            )
            return


@situation(
    "version-skew",
    "Pods run another version than this command",
    "the version in the job's status is not this command's",
)
def version_skew(facts: Facts) -> Iterator[Cause]:
    """Another bireme in the image than in the terminal. Harmless while the job runs well."""
    there, error = str(status_of(facts).get("version") or ""), own_error(facts)
    if facts.version and there and there != facts.version and (error or status_of(facts).get("phase") == "failed"):
        yield Cause(
            f"The job's image has bireme {there}, and this command is bireme {facts.version}.",
            f"Build and push an image of this version (`{facts.command} image build`) or install bireme {there} here, "
            f"and {AGAIN}.",
        )


@situation(
    "own-error",
    "The job reports its own error",
    "the job's status or the end of a pod's log holds an error, and nothing above fits",
    kind="consequence",
)
def own_words(facts: Facts) -> Iterator[Cause]:
    """Any other error of bireme, as it is."""
    error = own_error(facts)
    if error:
        otherwise = f"Read the logs ({bireme(facts, 'logs')}), mend it, and go on with {bireme(facts, 'resume')}."
        yield Cause(_cause(error, "The job failed"), _advice(error, otherwise), about_end(facts))
