"""What does TLS cost a round? `./dev bench tls [--floats N …] [--reps N] [--json]`.

Two pservers and two trainers on this machine, all connections by TCP, one cluster plain and one under TLS with
certificates of its own; they take turns, so that both meet the same conditions. Encryption is work for processors: on
one machine both ends of every connection pay from the same cores, and no network hides it, so this is the most that
it can cost. Results are checked to the last bit. A handshake is timed too, from nothing and with a session that was
kept, which jobs do not do.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from engines.local_cluster import Cluster, Shape
from engines.running import RunFailedError
from engines.tables import short
from machine import RESULTS, machine_facts, summarise

from bireme.core.certificates import files_of, make_ca
from bireme.core.errors import BiremeError, UsageError
from bireme.ps.wire import security

FLOATS = (1_000_000, 10_000_000)
WAYS = ("plain", "tls")
TURN_FLOATS = 20_000_000
"""About how much one turn moves, so that turns of small models are not all noise."""
HANDSHAKES = 200
NAME = "bench.default.bireme"


def measure(certificates: Path, floats: int, reps: int) -> dict[str, list[float]]:
    """Milliseconds of a round, plain and under TLS, one sample a repetition."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    rounds = min(max(TURN_FLOATS // floats, 3), 20)
    with ExitStack() as stack:
        clusters = {}
        for way in WAYS:
            directory = str(certificates) if way == "tls" else ""
            shape = Shape(trainers=2, pservers=2, floats=floats, place="tcp", tls=directory)
            clusters[way] = stack.enter_context(Cluster(shape, os.environ))
            clusters[way].rounds(3)
        for rep in range(reps):
            _say(f"{floats:,} floats: repetition {rep + 1} of {reps} …")
            # Alternate the order, so that neither way always runs first.
            for way in WAYS if rep % 2 == 0 else WAYS[::-1]:
                found[way].append(1e3 * statistics.median(clusters[way].rounds(rounds)))
        for cluster in clusters.values():
            cluster.check()
    return found


def figure_of(samples: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """What is written down of one size: both times, and how many times as long a round under TLS takes."""
    ratios = [tls / plain for plain, tls in zip(samples["plain"], samples["tls"], strict=True)]
    return {**{f"{way}_ms": summarise(taken) for way, taken in samples.items()}, "ratio": summarise(ratios)}


def handshake_ms(certificates: Path, count: int, *, is_resumed: bool) -> float:
    """Processor time of one handshake, both ends together, without a network."""
    own = security.load(certificates)
    own.accepting.num_tickets = 1 if is_resumed else 0
    session, begun = _shake(own, None) if is_resumed else None, time.process_time()
    for _ in range(count):
        _shake(own, session)
    return 1e3 * (time.process_time() - begun) / count


def _shake(own: security.Credentials, session: ssl.SSLSession | None) -> ssl.SSLSession | None:
    out, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = own.connecting.wrap_bio(back, out, session=session)
    there = own.accepting.wrap_bio(out, back, server_side=True)
    for side in (here, there, here, there):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    there.write(b"welcome")
    here.read(1)  # with it comes the ticket for the next time
    if session is not None and not here.session_reused:
        raise RunFailedError("a session that was kept was not taken up again")
    return here.session


def table(result: Mapping[str, Any]) -> str:
    """Milliseconds, medians with the spread of the ratio."""
    lines = [f"{'floats':>12}{'plain ms':>12}{'TLS ms':>12}{'ratio':>9}   (smallest … largest)"]
    for floats, figure in result["figures"].items():
        ratio = figure["ratio"]
        row = "".join(f"{short(figure[f'{way}_ms']['median']):>12}" for way in WAYS)
        spread = f"({ratio['min']:.2f} … {ratio['max']:.2f})"
        lines.append(f"{int(floats):>12,}{row}{ratio['median']:>9.2f}   {spread}")
    kept = result["handshake_ms"]
    lines.append(
        f"\na handshake: {kept['full']:.2f} ms of processor time; with a kept session {kept['resumed']:.2f} ms"
    )
    return "\n".join(lines)


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="./dev bench tls", description="What TLS costs a round.")
    parser.add_argument("--floats", type=int, nargs="+", default=list(FLOATS), help="parameters of the model")
    parser.add_argument("--reps", type=int, default=9, help="repetitions (default 9)")
    parser.add_argument("--quick", action="store_true", help="a tiny model, to see that it works; writes no results")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    if given.reps < 1 or min(given.floats) < 1:
        raise UsageError("--floats and --reps must be at least 1")
    if given.quick:
        given.floats, given.reps = [100_000], 2
    return given


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure, and write the result down unless it was only a trial."""
    facts = machine_facts()
    with tempfile.TemporaryDirectory(prefix="bireme-bench-tls-") as folder:
        certificates = Path(folder)
        for file, content in files_of(make_ca(NAME), NAME, days=1).items():
            (certificates / file).write_bytes(content)
        figures = {
            str(floats): figure_of(measure(certificates, floats, given.reps)) for floats in sorted(set(given.floats))
        }
        count = HANDSHAKES // 10 if given.quick else HANDSHAKES
        times = {
            way: round(handshake_ms(certificates, count, is_resumed=way == "resumed"), 3) for way in ("full", "resumed")
        }
    facts["load_after"] = [round(x, 2) for x in os.getloadavg()]
    how = {"pservers": 2, "trainers": 2, "reps": given.reps, "openssl": ssl.OPENSSL_VERSION, "cipher": _cipher()}
    result = {"bench": "tls", "machine": facts, "how": how, "figures": figures, "handshake_ms": times}
    if not given.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "tls.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def _cipher() -> str:
    ciphers = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).get_ciphers()
    return next((str(c["name"]) for c in ciphers if c["protocol"] == "TLSv1.3"), "unknown")


def main() -> None:
    """Parse, measure, print."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        given = parse()
        result = run(given)
    except BiremeError as e:
        print("\n".join(e.lines()), file=sys.stderr)
        sys.exit(e.exit_code)
    except RunFailedError as e:
        sys.exit(f"bench: {e}")
    except KeyboardInterrupt:
        sys.exit(130)
    if given.json:
        print(json.dumps(result))
        return
    print("milliseconds of a round of 2 trainers and 2 pservers on this machine, by TCP, plain and under TLS\n")
    print(table(result))
    print("\ntiny sizes: these figures say nothing" if given.quick else "\nwritten to bench/results/tls.json")


if __name__ == "__main__":
    main()
