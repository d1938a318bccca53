"""Paper says, we measured: holds, doesn't, can't.

A claim *holds* where the paired interval over the seeds says so, not the median alone, and for a stated improvement if the median
is at least `ROUGHLY` of it (the drawings and the text of the paper differ among themselves by about that much). About equal means
that the interval lies within ±`EQUAL_FRAC`. A claim *can't* be judged where a method is not there or the seeds are too few, and
can't hold where arithmetic forbids it: a ratio above 1, a makespan shorter than the arrivals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise, product

from headway.metrics.compare import PAIRS_MIN, Paired, median
from headway.report.mlfs.content import PAPER, STAND_IN, TITLES, Block, Json, higher_is_better
from headway.report.mlfs.paper import LARGE, Order, Paper, Ratio, Study
from headway.report.scale import NBSP, percent

HOLDS, DOES_NOT, CANNOT = "holds", "doesn't", "can't"
ROUGHLY = 0.75
EQUAL_FRAC = 0.10
RATIOS = frozenset({"deadline_ratio", "urgent_deadline_ratio", "avg_accuracy", "accuracy_ratio", "jct_under_100min_frac"})


@dataclass(frozen=True, slots=True)
class Claim:
    """One line of the table."""

    kind: str
    """`order`, `ratio` or `study`."""
    key: str
    figures: str
    load: int
    says: str
    measured: str
    verdict: str
    reason: str
    claimed_frac: float | None = None
    gain: Paired | None = None
    stand_in: bool = False

    def to_json(self) -> Json:
        """All of it by name."""
        return {**asdict(self), "gain": self.gain.to_json() if self.gain else None}


def claims(block: Block, paper: Paper) -> list[Claim]:
    """Every claim of the paper, judged on one protocol with the baselines as in the paper."""
    found = [claim for order in paper.orders for claim in judge_order(block, order)]
    found += [claim for ratio in paper.ratios for claim in judge_ratio(block, ratio, paper)]
    if block.studies:
        found += [judge_study(block, study) for study in paper.studies]
    return found


def judge_order(block: Block, order: Order) -> Iterator[Claim]:
    """A claim for each pair of neighbouring tiers, and for each tier of several. Methods that are missing are left out, so that
    their neighbours meet, and are named once.
    """
    load = block.loads[0 if order.lowest else -1]
    sign = ">" if higher_is_better(order.key) else "<"
    tiers = [[name for name in tier if _policy(block, name)] for tier in order.tiers]
    for tier in tiers:
        if len(tier) > 1:
            yield _all(block, order, load, list(combinations(tier, 2)), " ≈ ".join(map(_title(block), tier)), equal=True)
    for better, worse in pairwise(tier for tier in tiers if tier):
        says = f"{_several(block, better)} {sign} {_several(block, worse)}"
        yield _all(block, order, load, list(product(better, worse)), says, equal=False)
    absent = [name for tier in order.tiers for name in tier if not _policy(block, name)]
    if absent:
        names = ", ".join(TITLES[name] for name in absent)
        yield Claim("order", order.key, order.figures, load, f"the place of {names}", "–", CANNOT, _why_missing(block, absent))


def _all(block: Block, order: Order, load: int, pairs: Sequence[tuple[str, str]], says: str, *, equal: bool) -> Claim:
    """A claim that holds if it does for every pair."""
    gains = [(_gain(block, ours, other, load, order.key), ours, other) for ours, other in pairs]
    stand_in = any(_stands_in(block, name) for pair in pairs for name in pair)
    told = "; ".join(f"{TITLES[ours]} against {TITLES[other]} {interval(g)}" for g, ours, other in gains)
    if len(gains) == 1:
        told = interval(gains[0][0])
    if any(g.low_frac is None for g, _, _ in gains):
        verdict, reason = CANNOT, _few(min(g.pairs for g, _, _ in gains))
    else:
        wrong = [(g, ours, other) for g, ours, other in gains if not (_about_equal(g) if equal else g.verdict == "better")]
        verdict, reason = (
            (DOES_NOT, "; ".join(_wrong(g, ours, other, equal) for g, ours, other in wrong)) if wrong else (HOLDS, "")
        )
    reason = "; ".join(part for part in (reason, order.note) if part)
    only = gains[0][0] if len(gains) == 1 else None
    return Claim("order", order.key, order.figures, load, says, told, verdict, reason, None, only, stand_in)


def _about_equal(gain: Paired) -> bool:
    return (
        gain.low_frac is not None and gain.high_frac is not None and -EQUAL_FRAC <= gain.low_frac <= gain.high_frac <= EQUAL_FRAC
    )


def _wrong(gain: Paired, ours: str, other: str, equal: bool) -> str:
    if equal:
        return f"{TITLES[ours]} and {TITLES[other]} are not within ±{EQUAL_FRAC:.0%}"
    if gain.verdict == "worse":
        return f"{TITLES[ours]} is worse than {TITLES[other]}"
    return f"{TITLES[ours]} and {TITLES[other]} can't be told apart"


def judge_ratio(block: Block, ratio: Ratio, paper: Paper) -> Iterator[Claim]:
    """A claim for each stated improvement."""
    load = block.loads[0 if ratio.lowest else -1]
    drawn = paper.figure(ratio.key, block.scale)
    for of, versus, testbed, large in ratio.pairs:
        claimed = large if block.scale == LARGE else testbed
        says = f"{_title(block)(of)}: {_signed(claimed)} against {TITLES[versus]}"
        if drawn is not None and of in drawn.methods and versus in drawn.methods:
            at = 0 if ratio.lowest else -1
            y, z = drawn.methods[of][at], drawn.methods[versus][at]
            sign = 1 if higher_is_better(ratio.key) else -1
            says += f" (its own figure: {_signed(sign * (y - z) / z)})"
        absent = [name for name in (of, versus) if not _policy(block, name)]
        if absent:
            yield Claim(
                "ratio", ratio.key, ratio.figures, load, says, "–", CANNOT, _why_missing(block, absent), claimed
            )  # fmt: skip
            continue
        gain = _gain(block, of, versus, load, ratio.key)
        verdict, reason = judge(gain, claimed)
        if verdict != HOLDS and (barred := _barred(block, ratio.key, versus, load, claimed)):
            verdict, reason = CANNOT, barred
        stand_in = _stands_in(block, of) or _stands_in(block, versus)
        yield Claim(
            "ratio", ratio.key, ratio.figures, load, says, interval(gain), verdict, reason, claimed, gain, stand_in
        )  # fmt: skip


def judge(gain: Paired, claimed: float) -> tuple[str, str]:
    """(verdict, reason) of a stated gain; a negative one is a price, which may be lower."""
    if gain.low_frac is None or gain.high_frac is None or gain.median_frac is None:
        return CANNOT, _few(gain.pairs)
    if claimed < 0:
        if gain.median_frac >= claimed / ROUGHLY:
            return HOLDS, "" if gain.median_frac <= claimed * ROUGHLY else "costs less than that"
        return DOES_NOT, "costs more than that"
    if gain.verdict != "better":
        return DOES_NOT, "worse" if gain.verdict == "worse" else "the interval includes 0"
    if gain.median_frac < ROUGHLY * claimed:
        return DOES_NOT, f"better, by less than {percent(ROUGHLY * claimed)}"
    return HOLDS, ""


def _barred(block: Block, key: str, versus: str, load: int, claimed: float) -> str:
    """Why no policy could gain that much here; empty if one could."""
    policy = _policy(block, versus)
    theirs = median(block.values(policy, load, key)) if policy else None
    if theirs is None:
        return ""
    if key in RATIOS and theirs * (1 + ROUGHLY * claimed) > 1:
        room = 1 / theirs - 1 if theirs else 0.0
        return f"{TITLES[versus]} is at {theirs:.2f} already: no more than {_signed(room)} is left (A27)"
    span = median(block.values(policy, load, "span_s")) if policy else None
    if key == "makespan_s" and span and theirs * (1 - ROUGHLY * claimed) < span:
        return f"the arrivals alone take {span / theirs:.0%} of {TITLES[versus]}'s makespan (A28)"
    return ""


def judge_study(block: Block, study: Study) -> Claim:
    """What one part is worth, at the highest load; the text states a range over the loads."""
    load = block.loads[-1]
    low, high = study.claim
    says = f"with {study.name}: {_signed(low)} to {_signed(high)} {study.title}"
    gain = block.gain(study.base, study.without, load, study.key)
    known = all(any(e is not None for e in block.runs.get((p, load, study.key == "overloads"), ())) for p in _sides(study))
    if not known:
        return Claim(
            "study", study.key, study.figure, load, says, "–", CANNOT, f"{study.base} or {study.without} did not run", low
        )
    at = ", ".join(f"{each:,}: {interval(block.gain(study.base, study.without, each, study.key))}" for each in block.loads)
    verdict, reason = judge(gain, low)
    return Claim("study", study.key, study.figure, load, says, at, verdict, reason, low, gain)


def _sides(study: Study) -> tuple[str, str]:
    return study.base, study.without


# -- methods and words ----------------------------------------------------------------------------------------------
def _stands_in(block: Block, name: str) -> bool:
    return block.policy(PAPER, name) is None and name in STAND_IN and block.policy(PAPER, STAND_IN[name]) is not None


def _policy(block: Block, name: str) -> str | None:
    found = block.policy(PAPER, name)
    return found if found is not None or name not in STAND_IN else block.policy(PAPER, STAND_IN[name])


def _gain(block: Block, ours: str, other: str, load: int, key: str) -> Paired:
    mine, theirs = _policy(block, ours), _policy(block, other)
    assert mine is not None and theirs is not None
    return block.gain(mine, theirs, load, key)


def _title(block: Block) -> Callable[[str], str]:
    def title(name: str) -> str:
        return f"{TITLES[name]}*" if _stands_in(block, name) else TITLES[name]

    return title


def _several(block: Block, names: Sequence[str]) -> str:
    told = ", ".join(map(_title(block), names))
    return f"{{{told}}}" if len(names) > 1 else told


def _why_missing(block: Block, names: Sequence[str]) -> str:
    asked = block.missing.get(PAPER, {})
    by_reason: dict[str, list[str]] = {}
    for name in names:
        by_reason.setdefault(asked.get(name, "not among the methods of this run"), []).append(TITLES[name])
    return "; ".join(f"{', '.join(of)}: {reason}" for reason, of in by_reason.items())


def _few(pairs: int) -> str:
    return f"{pairs} pair{'' if pairs == 1 else 's'} of runs: an interval needs {PAIRS_MIN}"


def _signed(share: float | None) -> str:
    text = percent(share).replace(f".0{NBSP}", NBSP)
    return f"+{text}" if share is not None and share > 0 else text


def interval(gain: Paired) -> str:
    """The median gain and its interval."""
    if gain.median_frac is None:
        return "–"
    if gain.low_frac is None:
        return _signed(gain.median_frac)
    return f"{_signed(gain.median_frac)} [{_signed(gain.low_frac)}, {_signed(gain.high_frac)}]"
