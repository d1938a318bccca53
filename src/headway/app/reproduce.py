"""Run the evaluation of MLFS (Wang, Liu, Shen, CoNEXT 2020) and hold it against the paper: what `headway reproduce mlfs` does,
without the command line.

Runs are independent, and each that is done is a line of `runs.jsonl`: a reproduction that was stopped goes on, and one that asks
for more runs only what is new.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headway import __version__
from headway.app.output import whole_or_nothing
from headway.app.pool import check_folder, cores, each, run_log
from headway.app.reproduce_runs import Run, run_one
from headway.app.simulate import Json
from headway.core.errors import UserError, shown
from headway.core.specstring import unknown_name
from headway.policies.registry import choose, entry, names
from headway.report.mlfs.content import EQUAL, PAPER, TITLES, Block, Reproduction
from headway.report.mlfs.page import markdown, page, to_json
from headway.report.mlfs.paper import LARGE, TESTBED, paper

LOG, HTML, MARKDOWN = "runs.jsonl", "reproduction.html", "reproduction.md"
PROTOCOLS = ("stress", "literal", "overload")
PARTS = ("paper", "equal", "studies", "split")
LOADS = (155, 310, 620, 1240, 1860)
LARGE_LOADS = (58_663, 117_325)
LARGE_METHODS = ("mlf-h", "mlf-h+mlf-c", "graphene", "tiresias")
LARGE_SEEDS = 3
LOAD_MAX, SEEDS_MAX = 1_000_000, 1000
FIRST_SEED = 100
"""Seeds from 100 are for judging; those below have been seen while policies were made."""
SPECS = {"mlf-h-tuned": "mlf-h:tuned=true", "srtf-area": "srtf:gpus=0.5"}
"""Methods whose policy has another name."""
METHODS = tuple(TITLES)
OF_MLFS = frozenset({"mlfs", "mlf-rl", "mlf-h", "mlf-h+mlf-c", "mlf-h-tuned"})
LOAD_CONTROL = "mlf-c"
SPLIT = (
    ("tiresias, on whole GPUs", "tiresias"),
    ("sharing of GPUs", "tiresias:sharing=true"),
    ("order and placement", "mlf-h"),
    ("OptStop", "mlf-h+mlf-c:downgrade=false"),
    ("under overload, stop at the required accuracy", "mlf-h+mlf-c"),
    ("the queue trick at its most: as if a job always waited", "mlf-h+mlf-c:queue=always"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproduceRequest:
    """What to reproduce and where to keep it, as a person wrote it. Lists are text, parted by commas."""

    out: Path
    protocols: str = "stress"
    loads: str = ",".join(map(str, LOADS))
    methods: str = ",".join(METHODS)
    parts: str = ",".join(PARTS)
    seeds: int = 10
    large: bool = False
    large_loads: tuple[int, ...] = LARGE_LOADS
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class PreparedReproduction:
    """A request that has been read and checked: blocks without runs, the runs that they need, and what is left out."""

    blocks: tuple[Block, ...]
    runs: tuple[Run, ...]
    notes: tuple[str, ...]


def prepare(request: ReproduceRequest) -> PreparedReproduction:
    """Read and check everything that a request names. Nothing has run and nothing is written when this raises `UserError`."""
    protocols = _names(request.protocols, PROTOCOLS, "protocol")
    methods = _names(request.methods, METHODS, "methods")
    parts = _names(request.parts, PARTS, "parts")
    loads = _loads(request.loads)
    for key, value, most in (("seeds", request.seeds, SEEDS_MAX), ("workers", request.workers or 1, SEEDS_MAX)):
        if not 1 <= value <= most:
            raise UserError(f"expected a whole number from 1 to {most}, got {value}", key=key)
    check_folder(request.out, LOG)
    specs, missing = resolve(methods)
    if not specs[PAPER]:
        raise UserError(f"none of these methods is there: {', '.join(methods)}", key="methods")
    notes = [f"{TITLES[name]} is missing: {why}." for name, why in missing[PAPER].items()]
    seeds = tuple(range(FIRST_SEED, FIRST_SEED + request.seeds))
    studies = "studies" in parts and "mlf-h" in specs[PAPER]
    split, left_out = _split(methods) if "split" in parts else ((), [])
    notes += left_out
    tables = {table: specs[table] if table in parts else {} for table in (PAPER, EQUAL)}
    blocks = [Block(TESTBED, protocol, loads, seeds, tables, missing, {}, studies, split) for protocol in protocols]
    if request.large:
        chosen = [name for name in LARGE_METHODS if name in methods]
        few = {PAPER: {name: spec for name, spec in specs[PAPER].items() if name in chosen}, EQUAL: {}}
        blocks += [Block(LARGE, p, request.large_loads, seeds[:LARGE_SEEDS], few, missing, {}) for p in protocols]
    runs = [run for block in blocks for run in _runs(block)]
    return PreparedReproduction(tuple(blocks), tuple(dict.fromkeys(runs)), tuple(dict.fromkeys(notes)))


def run(
    request: ReproduceRequest, ready: PreparedReproduction, *, tell: Callable[[int, int], None] | None = None
) -> tuple[Reproduction, Json, list[Path]]:
    """Run what has not been run yet, and write the report; returns it, its numbers and its files. `tell` hears how many runs are
    done, of how many.
    """
    request.out.mkdir(exist_ok=True)
    with run_log(request.out / LOG) as (entries, add):
        done = {line["run"]: line["entry"] for line in entries if line.get("version") == __version__ and "run" in line}
        todo = [run for run in ready.runs if run.key not in done]
        for count, (index, found) in enumerate(each(run_one, todo, workers=request.workers or cores()), start=1):
            done[todo[index].key] = found
            add({"run": todo[index].key, "version": __version__, "entry": found})
            if tell:
                tell(len(ready.runs) - len(todo) + count, len(ready.runs))
    stuck: list[str] = []
    blocks = [_filled(block, done, stuck) for block in ready.blocks]
    content = Reproduction(command_line(request), __version__, blocks, (*ready.notes, *stuck))
    files = {HTML: page(content, paper()), MARKDOWN: markdown(content, paper())}
    for name, text in files.items():
        with whole_or_nothing(request.out / name) as path:
            path.write_text(text, "utf-8")
    paths = [request.out / name for name in (*files, LOG)]
    return content, {**to_json(content, paper()), "files": [str(path) for path in paths]}, paths


def resolve(methods: Sequence[str]) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """The policies of methods, by table, and why some are not there.

    As in the paper: the others on whole GPUs, MLF-H shares; nobody stops early unless it is the method. Equal: all share and
    all have MLF-C beside them, so MLF-H alone and with MLF-C are one.
    """
    specs: dict[str, dict[str, str]] = {PAPER: {}, EQUAL: {}}
    missing: dict[str, dict[str, str]] = {PAPER: {}, EQUAL: {}}
    control = _exists(f"fifo+{LOAD_CONTROL}")[0] is not None
    for name in methods:
        spec = SPECS.get(name, name)
        found, why = _exists(_on_whole_gpus(spec) if name not in OF_MLFS else spec)
        if found is None:
            missing[PAPER][name] = missing[EQUAL][name] = why
            continue
        specs[PAPER][name] = found
        if LOAD_CONTROL in spec or name == "mlfs":  # which is MLF-RL with MLF-C where all have it
            continue
        plain = spec if name in OF_MLFS else f"{spec}:sharing=true"
        found, why = _exists(f"{plain}+{LOAD_CONTROL}" if control else plain)
        if found is None:
            missing[EQUAL][name] = why
        else:
            specs[EQUAL][name] = found
    return specs, missing


def _on_whole_gpus(spec: str) -> str:
    """A baseline as the paper runs it: without sharing, whatever its own default is."""
    try:
        default = {name: default for name, default, _ in entry(spec).params}.get("sharing", False)
    except UserError:
        return spec
    return f"{spec}:sharing=false" if default is True else spec


def _exists(spec: str) -> tuple[str | None, str]:
    """The canonical form of a policy's spec, or why there is no such policy."""
    base = spec.partition(":")[0].partition("+")[0]
    if base not in names():
        return None, "there is no such policy yet"
    try:
        return choose(spec).spec, ""
    except UserError as error:
        return None, str(error)


def _split(methods: Sequence[str]) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """The steps from Tiresias to MLF-H with MLF-C, as far as the policies are there."""
    if not {"tiresias", "mlf-h"} <= set(methods):
        return (), []
    steps, notes = [], []
    for name, spec in SPLIT:
        found, why = _exists(spec)
        if found is None:
            notes.append(f"The split of the gain leaves out “{name}”: {why}.")
        else:
            steps.append((name, found))
    return tuple(steps), notes


def _runs(block: Block) -> Iterator[Run]:
    """Every run that a block needs, seed by seed: what is there early is whole."""
    plain = {spec for table in block.methods.values() for spec in table.values()}
    plain |= {spec for _, spec in block.split}
    counted: set[str] = set()
    if block.studies:
        studies = [(study, _exists(study.base)[0], _exists(study.without)[0]) for study in paper().studies]
        for study, base, without in studies:
            if base and without:
                (counted if study.key == "overloads" else plain).update((base, without))
    for seed in block.seeds:
        for load in block.loads:
            yield from (Run(block.scale, block.protocol, load, spec, seed) for spec in sorted(plain))
            yield from (Run(block.scale, block.protocol, load, spec, seed, counted=True) for spec in sorted(counted))


def _filled(block: Block, done: Mapping[str, Json], stuck: list[str]) -> Block:
    """The block with its runs, and a note for each policy under which jobs waited for ever."""
    runs: dict[tuple[str, int, bool], list[Json | None]] = {}
    for run in _runs(block):
        found = done[run.key]
        if "stuck" in found:
            stuck.append(f"{run.workload}, seed {run.seed}: {found['stuck']}. The run is in no figure.")
        runs.setdefault((run.policy, run.load, run.counted), []).append(None if "stuck" in found else found)
    return replace(block, runs=runs)


def command_line(request: ReproduceRequest) -> str:
    """The command that makes this again, with all options that differ from their defaults."""
    plain = ReproduceRequest(out=request.out)
    words = ["headway", "reproduce", "mlfs"]
    for option, name in (("protocol", "protocols"), ("loads", "loads"), ("methods", "methods"), ("parts", "parts")):
        if getattr(request, name) != getattr(plain, name):
            words += [f"--{option}", getattr(request, name)]
    if request.seeds != plain.seeds:
        words += ["--seeds", str(request.seeds)]
    if request.large:
        words.append("--large")
    return shlex.join([*words, "--out", str(request.out)])


# -- reading --------------------------------------------------------------------------------------------------------
def _names(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    """Names parted by commas, in the order of `known`."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in known:
            raise unknown_name(what.removesuffix("s"), word, known, also="all")
        if words.count(word) > 1:
            raise UserError(f"{shown(word)} stands twice", key=what)
    return tuple(name for name in known if name in words)


def _loads(text: str) -> tuple[int, ...]:
    loads = []
    for word in text.split(","):
        word = word.strip()
        if not (word.isascii() and word.isdecimal()) or not 1 <= int(word[:9]) <= LOAD_MAX or len(word) > 7:
            raise UserError(f"expected numbers of jobs such as 155,1860, at most {LOAD_MAX:,}, got {shown(text)}", key="loads")
        loads.append(int(word))
    if len(set(loads)) < len(loads):
        raise UserError(f"a load stands twice in {shown(text)}", key="loads")
    return tuple(sorted(loads))
