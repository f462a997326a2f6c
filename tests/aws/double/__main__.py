"""Run the double for people: python -m tests.aws.double --port 5000 --rate 60 --json '{"stray_enis": 2}'."""

from __future__ import annotations

import argparse
import threading

from tests.aws.double import DoubleServer, ScaledClock, World
from tests.aws.double.world import load_faults


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.aws.double", description=__doc__)
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--region", default="us-west-2")
    parser.add_argument("--rate", type=float, default=60.0, help="seconds of AWS in one real second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="{}", help="faults, as a JSON object")
    options = parser.parse_args()
    world = World(region=options.region, seed=options.seed, clock=ScaledClock(options.rate))
    load_faults(world, options.json)
    with DoubleServer(world, options.port) as server:
        print(f"export AWS_ENDPOINT_URL={server.url} AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("stopped")


main()
