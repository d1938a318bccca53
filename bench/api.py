"""How fast the API is, over real HTTP: one by one, in batches, with 10,000 jobs queued.

    python bench/api.py [--jobs 10000] [--policy fifo] [--clients 8]

The controller runs in a process of its own, with a real journal, at its usual pace, and with an engine that only answers; the
first jobs take all there is. What is measured is what the API, the controller, the policy and the journal need.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

TOKEN = "bench"
SERVER: list[int] = []
"""The server's process id."""
SPEC = {"schema": 1, "name": "train", "run": "python train.py --epochs 30", "workdir": "/", "user": "ann",
        "resources": {"gpu_alternatives": [{"milli": 1000}]}, "time_limit_s": 3600.0}  # fmt: skip


def serve(path: str, policy: str, queue: Any) -> None:
    """The server's process."""
    import asyncio

    from bench.live import Answers, brains

    from headway.api.auth import Access
    from headway.api.server import ApiServer
    from headway.engines.base import NodeInfo
    from headway.policies.registry import choose
    from headway.runtime.controller import Controller
    from headway.runtime.journal import Journal

    async def run() -> None:
        engine = Answers((NodeInfo("n0", 4, "gpu", 64_000, 10**12),))
        controller = Controller(Journal(Path(path)), engine, brains(choose(policy).policy))
        await controller.start()
        server = ApiServer(controller, Access(TOKEN))
        await server.start()
        queue.put(server.url)
        await controller.run()
        await server.close()
        await controller.close()

    asyncio.run(run())


def cpu_s(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(what: str, count: int, do: Any) -> float:
    """Do something and say how fast it was, and what it cost the server; how long it took, in seconds."""
    began, used = time.perf_counter(), cpu_s(SERVER[0])
    do()
    took, used = time.perf_counter() - began, cpu_s(SERVER[0]) - used
    each_ms = 1000 * used / count
    print(f"{what:<40} {took:8.2f} s {count / took:9.0f} /s   server: {used:6.2f} s, {each_ms:7.3f} ms each", flush=True)
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--clients", type=int, default=8)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        urls = context.Queue()
        process = context.Process(target=serve, args=(f"{folder}/journal.db", args.policy, urls), daemon=True)
        process.start()
        SERVER.append(process.pid or 0)
        url = urls.get(timeout=600)
        client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120, trust_env=False)
        figures = measure(client, url, args.jobs, args.clients)
        client.post("/v1/stop")
        process.join(30)
    print(json.dumps({key: round(value, 4) for key, value in figures.items()}))


def measure(client: httpx.Client, url: str, jobs: int, clients: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    spec = json.dumps(SPEC).encode()

    def one_by_one(http: httpx.Client, count: int) -> None:
        for _ in range(count):
            assert http.post("/v1/jobs", content=spec).status_code == 201

    def batches(count: int) -> None:
        for at in range(0, count, 1000):
            body = {"jobs": [{"spec": SPEC} for _ in range(min(1000, count - at))]}
            assert client.post("/v1/jobs/batch", json=body).status_code == 200

    one_by_one(client, 20)
    figures["batch_per_s"] = jobs / timed(f"{jobs} jobs in batches of 1,000", jobs, lambda: batches(jobs))
    figures["one_by_one_per_s"] = 600 / timed("600 jobs one by one, one client", 600, lambda: one_by_one(client, 600))

    def many() -> None:
        def own() -> None:
            with httpx.Client(base_url=url, headers=client.headers, timeout=120, trust_env=False) as http:
                one_by_one(http, 200)

        threads = [threading.Thread(target=own) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    figures["clients_per_s"] = 200 * clients / timed(f"{200 * clients} jobs one by one, {clients} clients", 200 * clients, many)
    figures["list_s"] = timed("list of 10,000 jobs", 10_000, lambda: client.get("/v1/jobs", params={"limit": 10_000}).content)
    found = client.get("/v1/jobs", params={"limit": 10_000}).json()["jobs"]
    assert len(found) == min(jobs + 620 + 200 * clients, 10_000)
    figures["page_s"] = timed("list of the newest 100", 100, lambda: client.get("/v1/jobs", params={"limit": 100}).content)
    figures["metrics_s"] = timed("/metrics", 1, lambda: client.get("/metrics").content)
    figures["status_s"] = timed("/v1/status", 1, lambda: client.get("/v1/status").content)
    for verb in ("hold", "cancel"):
        path = f"/v1/jobs/{verb}"
        figures[f"{verb}_all_s"] = timed(
            f"{verb} all", jobs, lambda p=path: client.post(p, json={"all": True}).raise_for_status()
        )
    return figures


if __name__ == "__main__":
    main()
