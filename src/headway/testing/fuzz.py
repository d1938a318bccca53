"""`python -m headway.testing.fuzz --seed S --count N [--policy P] [--live]`: scenarios with faults, from a seed on, of the
simulator or (`--live`) of the live controller. Failing seeds are named, the last steps of each told; exit code 1."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter

from headway.core.errors import UserError
from headway.policies.registry import choose
from headway.sim.run import StuckError
from headway.testing.live_run import replay_live_seed
from headway.testing.scenarios import run_scenario, scenario

FAILURES_MAX = 5
"""After so many failing seeds the rest is left out."""


def run_live_seed(seed: int, policy: str) -> Counter[str]:
    """How the jobs of a live scenario have ended; AssertionError with the world's trace if what must never be was."""
    outcome = replay_live_seed(seed, policy)
    if outcome.wrongs:
        raise AssertionError(str(outcome))
    return Counter(phase.lower() for phase in outcome.ends.values())


def main(words: list[str] | None = None) -> int:
    """Run the scenarios; 0: all held, 1: some did not, 2: the command line is wrong."""
    parser = argparse.ArgumentParser(prog="python -m headway.testing.fuzz", description=str(__doc__).partition(": ")[2])
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--count", type=int, default=500, help="how many seeds (default 500)")
    parser.add_argument("--live", action="store_true", help="the live controller, its engine, journal and other controllers")
    parser.add_argument("--policy", default="", help="a policy's spec string; default: all of them in turn")
    asked = parser.parse_args(words)
    try:
        if asked.policy:
            choose(asked.policy)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    logging.disable(logging.ERROR)  # What a controller says of each fault.
    begin, ended, failed = time.perf_counter(), Counter[str](), []
    for seed in range(asked.seed, asked.seed + asked.count):
        try:
            ended += run_live_seed(seed, asked.policy) if asked.live else run_scenario(scenario(seed, asked.policy))
        except (AssertionError, StuckError) as error:
            failed.append(seed)
            if not asked.live:
                print(f"--- {scenario(seed, asked.policy)}", file=sys.stderr)
            traceback.print_exception(error, limit=-3, file=sys.stderr)
            if len(failed) == FAILURES_MAX:
                break
    ran = f"{seed - asked.seed + 1 if asked.count > 0 else 0} scenarios in {time.perf_counter() - begin:.1f} s"
    jobs = ", ".join(f"{count} {how}" for how, count in sorted(ended.items()))
    print(f"{ran}: jobs {jobs or 'none'}; " + (f"failing seeds: {' '.join(map(str, failed))}" if failed else "every check held"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
