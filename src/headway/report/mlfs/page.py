"""The report of a reproduction: one HTML file without a script, the same in Markdown, and its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from headway.metrics.compare import median
from headway.report.mlfs.claims import CANNOT, DOES_NOT, HOLDS, Claim, claims
from headway.report.mlfs.content import EQUAL, PAPER, TITLES, Block, Json, Reproduction
from headway.report.mlfs.figures import NARROW, WIDE, Pair, pairs
from headway.report.mlfs.paper import LARGE, Paper
from headway.report.mlfs.tables import (
    METRICS,
    Table,
    claims_table,
    lower_bound,
    metric_tables,
    split_table,
    stated_table,
    study_tables,
)
from headway.report.page import page_css
from headway.report.templates import template

SCALES = {"testbed": "20 nodes with 4 GPUs each", "large": "550 nodes with 2,474 GPUs"}
VERDICTS = {HOLDS: "better", DOES_NOT: "worse", CANNOT: "soft"}
"""Verdict → class of the page."""
TABLES = {
    PAPER: ("As in the paper", "Baselines on whole GPUs, nobody but MLF-C stops early."),
    EQUAL: ("The same for all", "All share GPUs and all have MLF-C beside them: order and placement alone differ."),
}
ASSUMED = (
    "The workload is synthesised: the public trace that the paper uses has no accuracies, iterations, losses, models or traffic "
    "(A14); what stands in their place was frozen before any policy was written. The protocol literal is the paper's text; in "
    "stress arrivals come in bursts and deadlines are scaled to the run times, since the text's own can't give its figures (A27, "
    "A28); overload is stress with more work than the cluster can do.",
    "Judging seeds from 100 on, which no policy was made or tuned on.",
    "Traffic is what tasks send to tasks on other nodes. Accuracy is that by the deadline. Waiting are the periods in which a "
    "job is not up. Time to decide is the scheduler's own time in a round, on this machine, beside other runs.",
    "Overloaded servers are counted once in every round in which the scheduler finds one above 90 % of a resource.",
)


def page(content: Reproduction, paper: Paper) -> str:
    """The page."""
    return template("mlfs/page.html.j2").render(
        content=content,
        css=Markup(page_css()),
        headline=headline(content, paper),
        blocks=[_section(block, paper) for block in content.blocks],
        assumed=(*ASSUMED, *content.notes),
        verdicts=VERDICTS,
    )


def markdown(content: Reproduction, paper: Paper) -> str:
    """The same tables as Markdown."""
    lines = ["# MLFS, reproduced", "", headline(content, paper), "", "```", content.command, "```", ""]
    for block in content.blocks:
        lines += [f"## {heading(block)}", "", about(block), ""]
        for title, note, tables in _groups(block, paper):
            lines += [f"### {title}", ""]
            lines += [note, ""] if note else []
            for table in tables:
                lines += _markdown_table(table, alone=len(tables) == 1 and table.title == title)
    lines += ["## What was assumed", "", *(f"- {note}" for note in (*ASSUMED, *content.notes)), ""]
    return "\n".join(lines)


def to_json(content: Reproduction, paper: Paper) -> Json:
    """The numbers of the report."""
    return {
        "command": content.command,
        "version": content.version,
        "notes": list(content.notes),
        "blocks": [_block_json(block, paper) for block in content.blocks],
    }


def headline(content: Reproduction, paper: Paper) -> str:
    """The result in a sentence or two for each block."""
    said = []
    for block in content.blocks:
        if not block.methods[PAPER]:
            continue
        count = Counter(claim.verdict for claim in claims(block, paper))
        said.append(
            f"{heading(block)}: of {count.total()} claims {count[HOLDS]} hold, {count[DOES_NOT]} don't, and {count[CANNOT]} "
            "can't be judged or can't hold."
        )
    return " ".join(said) or "Nothing of the paper's own setting was asked for."


def heading(block: Block) -> str:
    return f"{block.protocol[0].upper()}{block.protocol[1:]}{', large scale' if block.scale == LARGE else ''}"


def about(block: Block) -> str:
    loads = ", ".join(f"{load:,}" for load in block.loads)
    seeds = f"{block.seeds[0]}–{block.seeds[-1]}" if len(block.seeds) > 1 else f"{block.seeds[0]}"
    return f"{loads} jobs on {SCALES[block.scale]}; seeds {seeds}."


def _groups(block: Block, paper: Paper) -> list[tuple[str, str, list[Table]]]:
    """(title, note, tables) of a block, in the order of the report."""
    groups: list[tuple[str, str, list[Table]]] = []
    if block.methods[PAPER]:
        table = claims_table(block, claims(block, paper))
        groups.append((table.title, "", [table]))
    for name, (title, note) in TABLES.items():
        if tables := metric_tables(block, name, paper):
            groups.append((title, note, tables))
    if (split := split_table(block)) is not None:
        groups.append((split.title, "", [split]))
    if studies := study_tables(block, paper):
        groups.append(("Studies of one part", "MLF-H with and without it; of MLF-C, MLF-H with MLF-C and without.", studies))
    if block.methods[PAPER] and (stated := stated_table(block, paper)):
        groups.append(("Stated without a figure", "", stated))
    return groups


def _section(block: Block, paper: Paper) -> dict[str, Any]:
    return {
        "id": f"{block.scale}-{block.protocol}",
        "title": heading(block),
        "about": about(block),
        "groups": _groups(block, paper),
        "claims": bool(block.methods[PAPER]),
        "figures": [_drawn(pair) for pair in pairs(block, paper)],
    }


def _drawn(pair: Pair) -> dict[str, Any]:
    sides = [("the paper", pair.paper)] if pair.paper is not None else []
    return {
        "name": pair.name,
        "title": pair.title,
        "caption": pair.caption,
        "sides": [
            {"who": who, "wide": Markup(draw(WIDE)), "narrow": Markup(draw(NARROW))}
            for who, draw in (*sides, ("ours", pair.ours))
        ],
    }


def _markdown_table(table: Table, *, alone: bool) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [] if alone else [f"#### {table.title}", ""]
    if table.note:
        lines += [table.note, ""]
    rule = (
        "|"
        + "|".join("---" if not k or k in table.words or k == table.verdicts else "--:" for k in range(len(table.headers)))
        + "|"
    )
    return [*lines, row(table.headers), rule, *(row(cells) for cells in table.rows), ""]


def _block_json(block: Block, paper: Paper) -> Json:
    found: list[Claim] = claims(block, paper) if block.methods[PAPER] else []
    results = []
    for table, methods in block.methods.items():
        for method, policy in methods.items():
            for load in block.loads:
                medians = {metric.key: median(block.values(policy, load, metric.key)) for metric in METRICS}
                against = {
                    other: block.gain(policy, theirs, load, "avg_jct_s").to_json()
                    for other, theirs in methods.items()
                    if other in ("mlf-h", "tiresias", "srtf") and other != method
                }
                results.append(
                    {"table": table, "method": method, "policy": policy, "jobs": load, **medians, "jct_against": against}
                )
    split = [
        {"added": name, "policy": policy, "avg_jct_s": median(block.values(policy, block.loads[-1], "avg_jct_s"))}
        for name, policy in block.split
    ]
    return {
        "scale": block.scale,
        "protocol": block.protocol,
        "loads": list(block.loads),
        "seeds": list(block.seeds),
        "missing": {table: dict(of) for table, of in block.missing.items()},
        "titles": {name: TITLES[name] for of in block.methods.values() for name in of},
        "avg_jct_bound_s": {str(load): lower_bound(block, load) for load in block.loads},
        "results": results,
        "claims": [claim.to_json() for claim in found],
        "split": split,
        "runs": [
            {**entry, "overloads_counted": counted}
            for (_, _, counted), entries in block.runs.items()
            for entry in entries
            if entry is not None
        ],
    }
