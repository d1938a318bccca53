"""Many simulations side by side: what becomes of the workers when somebody kills their parent."""

import os
import signal
import subprocess
import sys

PARENT = """
import os, sys, time
from headway.app.pool import each

def work(item):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(600)

if __name__ == "__main__":
    list(each(work, [1, 2], workers=2))
"""


def test_workers_of_a_killed_parent_end(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT.replace("\\\\", "\\"))
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
        assert parent.stdout.read() == b"", "the pipe closes when the last worker has ended"
    for worker in workers:
        assert not alive(worker)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGCONT)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
