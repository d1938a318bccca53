"""The frozen generators once more, from their description alone: one draw at a time, in Python's own integers.

Nothing of `headway` is imported here. A job is a dictionary of what was drawn; arrivals are µs.
"""

from bisect import bisect_right
from collections.abc import Iterator
from fractions import Fraction
from math import floor
from typing import Any
from zlib import crc32

import numpy as np

Job = dict[str, Any]
HOURS = "1.24 0.97 1.07 1.10 0.66 1.07 1.72 2.11 1.16 1.04 1.03 0.92 0.76 0.67 0.68 0.65 0.94 0.62 0.79 0.77 1.00 0.86 1.09 1.07"
DAYS = "0.84 1.05 1.12 1.27 1.52 0.60 0.60"


def pcg64(words: list[int]) -> Iterator[int]:
    """PCG XSL-RR 128/64 (O'Neill 2014), seeded with four words of 64 bits as NumPy does."""
    mask, multiplier = (1 << 128) - 1, 0x2360ED051FC65DA44385DF649FCCF645
    increment = ((words[2] << 64 | words[3]) << 1 | 1) & mask
    state = (increment + (words[0] << 64 | words[1])) * multiplier + increment & mask
    while True:
        state = state * multiplier + increment & mask
        folded, turn = (state >> 64) ^ (state & (1 << 64) - 1), state >> 122
        yield (folded >> turn | folded << (64 - turn)) & (1 << 64) - 1


class Stream:
    def __init__(self, name: str, seed: int) -> None:
        words = np.random.SeedSequence([seed, crc32(name.encode())]).generate_state(4, np.uint64)
        self.bits = pcg64([int(word) for word in words])

    def u(self) -> int:
        return next(self.bits) >> 32

    def uniform(self, a: int, b: int) -> int:
        return a + (self.u() * (b - a + 1) >> 32)

    def choice(self, weights: list[int]) -> int:
        left = self.u() * sum(weights) >> 32
        for index, weight in enumerate(weights):
            if left < weight:
                return index
            left -= weight
        raise AssertionError

    def quantile(self, levels: list[int], values: list[int]) -> int:
        x = 1000 * self.u()
        i = bisect_right([level << 32 for level in levels], x) - 1
        f = (x - (levels[i] << 32)) // (levels[i + 1] - levels[i])
        return values[i] + ((values[i + 1] - values[i]) * f >> 32)


def ints(text: str, scale: int = 1) -> list[int]:
    return [int(Fraction(word) * scale) for word in text.split()]


def arrivals(stream: Stream, count: int, span_us: int, office: bool) -> list[int]:
    """By exact fractions: the time at which the cumulative profile is at the draw's share of its end."""
    hour_us = 3_600_000_000
    table = [h * d if office else 1 for d in map(Fraction, DAYS.split()) for h in map(Fraction, HOURS.split())]
    edges, sums = [0], [Fraction(0)]
    while edges[-1] < span_us:
        end = min(edges[-1] + hour_us, span_us)
        sums.append(sums[-1] + table[edges[-1] // hour_us % 168] * (end - edges[-1]))
        edges.append(end)
    times = []
    for u in sorted(stream.u() for _ in range(count)):
        target = u * sums[-1] / 2**32
        i = bisect_right(sums, target) - 1
        times.append(floor(edges[i] + (target - sums[i]) / (sums[i + 1] - sums[i]) * (edges[i + 1] - edges[i])))
    return times


def philly_like(seed: int, jobs: int, load: Fraction, gpus: int, max_s: int = 604_800) -> list[Job]:
    levels = [int(Fraction(p) * 10) for p in "0 1 5 10 20 30 40 50 60 70 80 90 95 99 99.5 100".split()]
    table = {
        1: "1 30 52 61 73 176 526 1044 1739 2449 3473 6253 14620 117784 223224 3256045",
        2: "2 5 9 11 14 17 19 21 24 31 116 79358 200460 526313 853029 2582803",
        4: "3 46 182 696 4279 11965 20087 36341 70723 92215 141306 192045 386982 1106514 1339690 2750674",
        8: "1 32 82 416 2097 7049 21449 61436 128858 180183 235108 408420 600891 1780406 2126975 4628226",
        16: "1 2 35 68 354 990 4619 31183 55293 83271 161326 254372 453676 1152387 1369876 1710643",
    }
    stream, drawn = Stream("philly-like", seed), []
    for _ in range(jobs):
        size = [1, 2, 4, 8, 16, 32][stream.choice([860, 56, 43, 32, 6, 3])]
        duration_ms = min(stream.quantile(levels, ints(table[min(size, 16)], 1000)), max_s * 1000)
        queue = stream.choice([40, 20, 12, 8, 8, 5, 4, 3])
        which = stream.choice([1] * 7)
        factor = [Fraction(f) for f in ("0.5", "0.8", "1", "1", "1.25", "2", "3")][which]
        drawn.append({"gpus": size, "ms": duration_ms, "queue": queue, "which": which})
        drawn[-1]["estimate_us"] = floor(duration_ms * 1000 * factor)
    span = floor(sum(job["ms"] * 1000 * job["gpus"] for job in drawn) / (load * gpus))
    for job, at in zip(drawn, arrivals(stream, jobs, span, True), strict=True):
        job["at"] = at
    return drawn


def mlfs_paper(seed: int, jobs: int, protocol: str, gpus: int) -> list[Job]:
    levels = [int(Fraction(p) * 10) for p in "0 0.5 2.5 10 25 50 75 90 97.5 99.5 100".split()]
    run_ms = ints("120 217 314 473 680 1020 1529 2201 3306 4782 9000", 1000)
    stream, drawn = Stream("mlfs-paper", seed), []
    for _ in range(jobs):
        job: Job = {"slack_ms": stream.uniform(1_800_000, 86_400_000 if protocol == "literal" else 10_800_000)}
        job["ms"], job["iterations"] = stream.quantile(levels, run_ms), stream.uniform(50, 200)
        job["gpus"] = [1, 2, 4, 8, 16, 32][stream.choice([1] * 6)]
        job["model"] = ["alexnet", "mlp", "resnet", "lstm", "svm"][stream.choice([1] * 5)]
        svm = job["model"] == "svm"
        job["weights"] = [] if svm else [3 + stream.uniform(0, 6) for _ in range(job["gpus"])]
        job["edge"], job["sink"] = stream.uniform(50 * 10**6, 10**8), stream.uniform(50 * 10**6, 10**8)
        job["requests"] = [
            (stream.uniform(300_000, 700_000), stream.uniform(300, 1300), stream.uniform(2 * 10**9, 10**10))
            for _ in range(job["gpus"])
        ]
        job["plateau"], job["k"], job["m"] = stream.uniform(970_000, 10**6), stream.choice([1] * 5), stream.choice([1] * 5)
        job["required"], job["urgency"] = stream.uniform(950_000, 990_000), stream.uniform(1, 10)
        job["which"] = stream.choice([1] * 7)
        job["percent"] = [82, 90, 96, 100, 104, 110, 118][job["which"]]
        drawn.append(job)
    week = 7 * 86_400_000_000
    if protocol == "literal":
        times = arrivals(stream, jobs, week, True)
    else:
        work = sum(job["ms"] * 1000 * job["gpus"] for job in drawn)
        span = week if protocol == "stress" else floor(Fraction(work) / (Fraction(12, 10) * gpus))
        instants = [stream.u() * span >> 32 for _ in range(max(1, floor(jobs / Fraction(25 * gpus, 80))))]
        times = []
        for _ in range(jobs):
            instant = instants[stream.uniform(0, len(instants) - 1)]
            times.append(instant + 1000 * min(stream.uniform(0, 600_000), stream.uniform(0, 600_000)))
    for job, at in zip(drawn, sorted(times), strict=True):
        job["at"] = at
    return drawn


def production(seed: int, jobs: int, load: Fraction, gpus: int) -> list[Job]:
    types = [
        (450, 20, 60),
        (800, 30, 90),
        (750, 30, 90),
        (680, 20, 60),
        (600, 20, 80),
        (80, 50, 200),
        (120, 50, 200),
        (1200, 10, 40),
    ]
    stream, drawn = Stream("production", seed), []
    for _ in range(jobs):
        kind = stream.choice([1] * 8)
        ms, low, high = types[kind]
        drawn.append(
            {"type": kind, "K": stream.uniform(1000 * low, 1000 * high), "b2": stream.uniform(100_000, 500_000), "c": ms}
        )
    span = floor(sum(job["K"] * job["c"] * 1000 for job in drawn) / (load * gpus))
    for job, at in zip(drawn, arrivals(stream, jobs, span, False), strict=True):
        job["at"] = at
    return drawn


def trials(seed: int, groups: int, load: Fraction, gpus: int) -> list[Job]:
    # 1/b1, b2 from and by how much, lowest and highest b0, t0 + t1 + t3 in seconds
    families = [
        ("2.2", "0.10", "0.40", 50_000, 600_000, "20.6"), ("6", "0.60", "0.80", 10_000, 100_000, "122.3"),
        ("5.5", "2.4", "0.60", 10_000, 80_000, "93.6"), ("0.65", "0.20", "0.20", 100_000, 1_000_000, "6.35"),
        ("3.5", "0.50", "0.70", 20_000, 200_000, "62.5"), ("0.70", "0.40", "0.10", 200_000, 2_000_000, "11.4"),
    ]  # fmt: skip
    factors = ints(".628 .719 .777 .823 .865 .905 .944 .980 1.020 1.059 1.105 1.156 1.215 1.287 1.391 1.592", 1000)
    stream, drawn, counts, work = Stream("trials", seed), [], [], 0
    for group in range(groups):
        counts.append(stream.uniform(4, 16))
        family = stream.uniform(0, 3 if seed < 100 else 5)
        drop = stream.choice([1, 9]) == 0
        a, low, more, least, most, seconds = families[family]
        for _ in range(counts[-1]):
            b2 = stream.uniform(int(Fraction(low) * 10**6), int((Fraction(low) + Fraction(more)) * 10**6))
            which = stream.choice([1] * 17)
            b0 = round(least * (most / least) ** (which / 16))
            diverges = stream.choice([1, 7]) == 0
            chosen = [stream.choice([1] * 16) for _ in range(5)]
            b2_error = stream.uniform(950_000, 1_150_000)
            k99 = floor(99 * 1000 / (Fraction(a) * Fraction(b0, 10**6)))
            work += floor(k99 * Fraction(seconds) * 1000)
            drawn.append({"group": group, "family": family, "drop": drop, "b2": b2, "b0": b0, "diverges": diverges})
            drawn[-1].update(errors=[factors[i] for i in chosen], b2_error=b2_error, k99=k99, which=which, chosen=chosen)
    times = arrivals(stream, groups, floor(work / (load * gpus)), False)
    for job in drawn:
        job["at"] = times[job["group"]]
    return drawn
