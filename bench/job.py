"""What `headway.job` costs a training script: one report, and one look at whether to stop.

`python bench/job.py` prints one line of JSON. The calls are made in a process of their own that takes itself for a task, whose
reports go into a file, as they do under the local engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import json, timeit
import headway.job as job
from headway.job import should_stop as look

def best_s(call, times):
    return min(timeit.repeat(call, number=times, repeat=7, globals=globals())) / times

assert job.in_headway
told = dict(report_us=1e6 * best_s("job.report(7, loss=0.25, total=100)", 50_000))
print(json.dumps(told | dict(should_stop_per_s=1 / best_s("look()", 1_000_000))))
"""


def figures() -> dict[str, float]:
    """Microseconds of a report, and looks a second: the best of seven runs."""
    with tempfile.TemporaryDirectory() as folder:
        told = {"HEADWAY_JOB": "1", "HEADWAY_ATTEMPT": "1", "HEADWAY_REPORTS": str(Path(folder) / "1-0.jsonl")}
        path = str(Path(__file__).resolve().parents[1] / "src")
        env = {**os.environ, "PYTHONPATH": path, **told}
        done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, stdout=subprocess.PIPE, check=True)
        found: dict[str, float] = json.loads(done.stdout)
        assert (Path(folder) / "1-0.jsonl").stat().st_size
    return found


if __name__ == "__main__":
    print(json.dumps({key: round(value, 2) for key, value in figures().items()}))
