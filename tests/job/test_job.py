"""`headway.job` as a training script uses it: in processes of its own, with the environment that the launcher gives."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

SRC = str(Path(__file__).parents[2] / "src")


def environment(folder: Path, **extra: str) -> dict[str, str]:
    own = {
        "HEADWAY_JOB": "7", "HEADWAY_JOB_UID": "uid-7", "HEADWAY_ATTEMPT": "2", "RANK": "1", "WORLD_SIZE": "4",
        "HEADWAY_REPORTS": str(folder / "reports.jsonl"), "HEADWAY_CHECKPOINT_DIR": str(folder / "ckpt"),
    }  # fmt: skip
    return {"PATH": os.environ["PATH"], "PYTHONPATH": SRC} | own | extra


def script(text: str, env: dict[str, str], **more: object) -> subprocess.CompletedProcess[str]:
    code = "import headway.job as job\n" + textwrap.dedent(text)
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, **more)  # type: ignore[call-overload, no-any-return]


def lines(folder: Path) -> list[dict[str, object]]:
    path = folder / "reports.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_only_the_standard_library_comes_in() -> None:
    code = (
        "import sys; before = set(sys.modules); import headway.job\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before}\n"
        "ours = [m for m in sys.modules if m.startswith('headway.') and not m.startswith('headway.job')]\n"
        "print(new - set(sys.stdlib_module_names) - {'headway'}, ours)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": SRC}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set() []"


def test_outside_headway_nothing_happens(tmp_path: Path) -> None:
    text = """
    import signal
    job.report(1, loss=2.0); job.done(); job.checkpoint_saved(1, "/nowhere")
    with job.saving(3) as path:
        path.write_text("x")
    print(path.exists(), job.resume_from(), job.should_stop(), job.rank, job.world_size, job.attempt, job.in_headway)
    print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    """
    done = script(text, {"PATH": os.environ["PATH"], "PYTHONPATH": SRC}, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("False None False 0 1 0 False\nTrue\n", "")
    assert list(tmp_path.iterdir()) == []


def test_reports_of_all_kinds_of_numbers(tmp_path: Path) -> None:
    text = """
    import time
    class Scalar:
        def __float__(self): return 0.25
    class Broken:
        def __float__(self): raise RuntimeError("no")
    def go(*a, **k):
        job.report(*a, **k); time.sleep(0.11)
    go(1, loss=Scalar(), accuracy=Broken(), total=10, lr=0.1, name="text")
    go(2.0, loss=float("nan"), accuracy=float("inf"), total=None)
    go(Scalar(), loss=10**400)
    go(None); go("3"); go(-1); go(float("nan")); go(True); go(object())
    go(1)
    """
    done = script(text, environment(tmp_path))
    assert done.stderr == ""
    got = [{key: value for key, value in line.items() if key != "t"} for line in lines(tmp_path)]
    assert got[0] == {"step": 1, "loss": 0.25, "total": 10, "other": {"lr": 0.1}}
    assert got[1]["step"] == 2 and got[1]["loss"] != got[1]["loss"] and got[1]["accuracy"] == float("inf")
    assert got[2:] == [{"step": 0}, {"step": 1}]


def test_numpy_scalars() -> None:
    np = pytest.importorskip("numpy")
    from headway.job.sending import number, whole

    assert number(np.float32(0.5)) == 0.5 and whole(np.int64(12)) == 12 and number(np.array([1.0, 2.0])) is None


def test_thinned_the_newest_counts_and_the_last_is_out(tmp_path: Path) -> None:
    text = """
    import time
    job.report(0, accuracy=0.5)
    t = time.perf_counter()
    for step in range(1, 20001):
        job.report(step, loss=1 / step, accuracy=0.75 if step == 19999 else None)
    print((time.perf_counter() - t) / 20000)
    """
    done = script(text, environment(tmp_path))
    assert float(done.stdout) < 50e-6  # 10^4 a second would take half of this process's time at 50 µs; it is about 3
    got = lines(tmp_path)
    assert len(got) < 40 and got[-1]["step"] == 20000 and got[-1]["loss"] == 1 / 20000 and got[-1]["accuracy"] == 0.75


def test_a_report_held_back_goes_out_by_itself(tmp_path: Path) -> None:
    text = """
    import time, os
    job.report(1); job.report(2, loss=0.5)
    time.sleep(0.5)
    os._exit(0)
    """
    script(text, environment(tmp_path))
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_several_writers_and_forks_keep_lines_whole(tmp_path: Path) -> None:
    text = """
    import os, threading
    from headway.job.sending import SENDER
    children = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            for n in range(200):
                SENDER.tell({"child": child, "n": n, "text": "x" * 300})
            os._exit(0)
        children.append(pid)
    threads = [threading.Thread(target=lambda i=i: [SENDER.tell({"thread": i, "n": n}) for n in range(200)]) for i in range(4)]
    [t.start() for t in threads]; [t.join() for t in threads]
    [os.waitpid(pid, 0) for pid in children]
    """
    assert script(text, environment(tmp_path)).stderr == ""
    got = lines(tmp_path)
    assert len(got) == 1600
    for kind in ("child", "thread"):
        for each in range(4):
            assert [line["n"] for line in got if line.get(kind) == each] == list(range(200))


def test_reports_that_cannot_be_written_are_lost_quietly(tmp_path: Path) -> None:
    env = environment(tmp_path, HEADWAY_REPORTS="/nowhere/at/all")
    done = script("job.report(1, loss=1.0); job.done(); print('on')", env)
    assert (done.stdout, done.stderr, done.returncode) == ("on\n", "", 0)


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, self.headers["Authorization"], json.loads(body)))  # type: ignore[attr-defined]
        refuse = self.server.refusals and self.server.refusals.pop()  # type: ignore[attr-defined]
        self.send_response(503 if refuse else 200)
        self.end_headers()
        self.wfile.write(b"{}")

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"stop": true, "reason": "preempted"}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server():  # type: ignore[no-untyped-def]
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    server.got, server.refusals = [], []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def over_http(folder: Path, server: HTTPServer) -> dict[str, str]:
    address = f"http://127.0.0.1:{server.server_port}/"
    return environment(
        folder, HEADWAY_REPORTS="", HEADWAY_URL=address, HEADWAY_TOKEN="hwjob_7_2_x", http_proxy="http://127.0.0.1:9"
    )


def test_over_http_when_there_is_no_file(tmp_path: Path, server: HTTPServer) -> None:
    done = script("job.report(1, loss=float('nan')); job.report(2, loss=0.5); job.done()", over_http(tmp_path, server))
    assert done.stderr == ""
    (path, token, body), *_ = got = server.got  # type: ignore[attr-defined]
    assert path == "/v1/jobs/7/reports" and token == "Bearer hwjob_7_2_x" and body["attempt"] == 2 and body["rank"] == 1
    reports = [report for _, _, body in got for report in body["reports"]]
    assert [report.get("step") for report in reports] == [2, None] and reports[0]["loss"] == 0.5 and reports[1]["done"] is True


def test_what_was_refused_for_now_is_sent_again(tmp_path: Path, server: HTTPServer) -> None:
    server.refusals.append(True)  # type: ignore[attr-defined]
    script("import time; job.report(1, loss=0.5); time.sleep(1.5); job.report(2)", over_http(tmp_path, server))
    got = [report["step"] for _, _, body in server.got for report in body["reports"]]  # type: ignore[attr-defined]
    assert got == [1, 1, 2]


def test_a_controller_that_is_away_holds_nobody_up(tmp_path: Path) -> None:
    env = environment(tmp_path, HEADWAY_REPORTS="", HEADWAY_URL="http://127.0.0.1:9", HEADWAY_TOKEN="x")
    done = script("import time; t = time.time(); [job.report(n) for n in range(1000)]; print(time.time() - t)", env)
    assert done.returncode == 0 and done.stderr == "" and float(done.stdout) < 0.5


def test_where_no_handler_can_be_set_the_controller_is_asked(tmp_path: Path, server: HTTPServer) -> None:
    text = """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a library has put its own in our place
    while not job.should_stop():
        time.sleep(0.01)
    print("stopped")
    """
    assert script(text, over_http(tmp_path, server)).stdout == "stopped\n"


def started(text: str, env: dict[str, str], before: str = "") -> subprocess.Popen[str]:
    code = before + "\nimport headway.job as job\n" + textwrap.dedent(text)
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_sigterm_is_a_flag_for_a_script_that_looks(tmp_path: Path) -> None:
    text = """
    import time
    job.should_stop(); print("ready", flush=True)
    while not job.should_stop():
        time.sleep(0.001)
    job.done()
    print("saved")
    """
    task = started(text, environment(tmp_path))
    assert task.stdout is not None and task.stdout.readline() == "ready\n"
    task.send_signal(signal.SIGTERM)
    assert task.communicate(timeout=30)[0] == "saved\n" and task.returncode == 0
    assert lines(tmp_path)[-1]["done"] is True


def test_sigterm_ends_a_script_that_does_not_look_and_its_last_report_is_out(tmp_path: Path) -> None:
    task = started("import time\njob.report(1); job.report(2); print('ready', flush=True); time.sleep(60)", environment(tmp_path))
    assert task.stdout is not None and task.stdout.readline() == "ready\n"
    task.send_signal(signal.SIGTERM)
    task.communicate(timeout=30)
    assert task.returncode == -signal.SIGTERM and [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_a_handler_that_is_there_is_called_too(tmp_path: Path) -> None:
    before = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('theirs', flush=True))"
    text = """
    import time
    print("ready", flush=True)
    while not job.should_stop():
        time.sleep(0.001)
    print("ours")
    """
    task = started(text, environment(tmp_path), before)
    assert task.stdout is not None and task.stdout.readline() == "ready\n"
    task.send_signal(signal.SIGTERM)
    assert task.communicate(timeout=30)[0] == "theirs\nours\n"


def test_imported_in_a_thread(tmp_path: Path) -> None:
    env = environment(tmp_path)
    code = """
import threading
thread = threading.Thread(target=lambda: __import__("headway.job"))
thread.start()
thread.join()
import headway.job as job
job.report(1)
print(job.should_stop())
"""
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_should_stop_is_cheap(tmp_path: Path) -> None:
    text = """
    import time
    t = time.perf_counter()
    for _ in range(1_000_000):
        job.should_stop()
    print(time.perf_counter() - t)
    """
    assert float(script(text, environment(tmp_path)).stdout) < 1.0


@pytest.mark.slow
def test_sigterm_at_any_moment_leaves_a_checkpoint_and_a_clean_exit(tmp_path: Path) -> None:
    """A script that does nothing but report and save is stopped at random moments: it always leaves with a whole checkpoint."""
    text = """
    import sys
    checkpoint = job.resume_from()
    step = checkpoint.step if checkpoint else 0
    assert checkpoint is None or checkpoint.path.read_text() == str(step) * 1000
    print(step, flush=True)
    while True:
        step += 1
        job.report(step, loss=1 / step)
        if step % 3 == 0 or job.should_stop():
            with job.saving(step) as path:
                path.write_text(str(step) * 1000)
        if job.should_stop():
            print(step)
            sys.exit(0)
    """
    draw, last = random.Random(5), 0
    for attempt in range(1, 9):
        task = started(text, environment(tmp_path, HEADWAY_ATTEMPT=str(attempt)))
        assert task.stdout is not None
        assert int(task.stdout.readline()) == last
        threading.Event().wait(draw.uniform(0, 0.1))
        task.send_signal(signal.SIGTERM)
        out, err = task.communicate(timeout=30)
        assert (task.returncode, err) == (0, "")
        last = int(out)
    saved = [line["step"] for line in lines(tmp_path) if "saved" in line]
    assert saved[-1] == last and len(list((tmp_path / "ckpt").glob("step-*"))) == 2
