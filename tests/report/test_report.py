"""The use case and the command: what a page holds, what is written when, and what is refused."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from headway.app import simulate as simulation
from headway.app.report import Report, ReportRequest, command_line, make, parse_seeds, prepare, write
from headway.app.simulate import SimulateRequest
from headway.cli import run_command
from headway.core.errors import UserError

Captured = pytest.CaptureFixture[str]
SMALL = ["report", "--workload", "poisson:jobs=40,cluster=1x8", "--cluster", "1x8", "--policy", "fifo", "--policy", "srtf"]
CLOCKED = {"decide_ms_avg", "decide_ms_p50", "decide_ms_p99", "wall_s", "cpu_s"}
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
VOID = {"meta", "br", "hr", "img", "input", "link"}


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are not preceded by a warm-up, which is for the sake of times only."""
    monkeypatch.setattr(simulation, "_warm_up", lambda _: None)


def request(folder: Path, seeds: str | None = None, **changed: Any) -> ReportRequest:
    asked = SimulateRequest(workload="poisson:jobs=60,load=1.2,cluster=1x8", cluster="1x8", policies=("fifo", "srtf"))
    own = {key: changed.pop(key) for key in ("gantt", "svg", "png") if key in changed}
    return ReportRequest(simulate=replace(asked, **changed), output=folder / "r.html", seeds=seeds, **own)


def made(asked: ReportRequest) -> Report:
    return make(asked, prepare(asked))


def page(asked: ReportRequest) -> str:
    return made(asked).files[asked.output].decode()


class Page(HTMLParser):
    """Checks that tags are closed in order, and keeps the text and all attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: set[str] = set()
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def test_the_page_needs_no_network_and_no_script(tmp_path: Path) -> None:
    html = page(request(tmp_path))
    found = Page(html)
    assert not found.tags & {"script", "link", "img", "iframe", "object", "embed", "image", "use"}
    assert not [value for _, name, value in found.attributes if name in ("src", "href", "xlink:href", "action", "data")]
    assert not re.search(r"url\(|@import|https?:|//[a-z]", html)


def test_the_page_says_what_was_asked_and_what_came_of_it(tmp_path: Path) -> None:
    asked = request(tmp_path)
    report = made(asked)
    text = Page(report.files[asked.output].decode()).text
    assert (
        f"headway report --workload poisson:jobs=60,load=1.2,cluster=1x8 --cluster 1x8 --policy fifo --policy srtf -o {tmp_path}"
        in text
    )
    assert report.json["workload_sha256"] in text and "1x8: 1 node, 8 GPUs" in text
    for part in (
        "JCT, average",
        "its lower bound",
        "Queue length",
        "Utilisation",
        "By size",
        "By user",
        "By queue",
        "What was assumed",
    ):
        assert part in text
    fifo, srtf = report.json["results"]
    best = min((fifo, srtf), key=lambda entry: entry["avg_jct_s"])
    assert f"{best['policy']}: jobs complete after" in text
    assert f"{best['avg_jct_s'] / best['avg_jct_bound_s']:.2f} times the lower bound" in text


def test_the_numbers_are_those_of_simulate(tmp_path: Path) -> None:
    asked = request(tmp_path)
    report = made(asked)
    same = list(simulation.run(asked.simulate, simulation.prepare(asked.simulate)))
    strip = [{key: value for key, value in entry.items() if key not in CLOCKED} for entry in (*report.json["results"], *same)]
    assert strip[:2] == strip[2:]
    for entry in same:
        table = report.json["tables"][entry["policy"]]
        assert sum(row["jobs"] for row in table["size"]) == entry["jobs"] == table["user"][0]["jobs"]
        assert table["queue"][0]["avg_jct_s"] == entry["avg_jct_s"]
        levels = report.json["series"][entry["policy"]]
        width = [b - a for a, b in zip(levels["edges_s"], levels["edges_s"][1:], strict=False)]
        booked_h = sum(gpus * s for gpus, s in zip(levels["gpus_booked"], width, strict=True)) / 3600
        assert booked_h == pytest.approx(entry["gpu_hours_booked"], rel=1e-4)
    assert json.loads(json.dumps(report.json, allow_nan=False)) == report.json


def test_names_from_a_trace_are_never_markup(tmp_path: Path) -> None:
    trace = tmp_path / "t<b>.csv"
    rows = '2017-10-09 00:00:00,100,1,0,<script>alert(1)</script>\n2017-10-09 00:00:05,100,2,0,"a""&amp;"\n'
    trace.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n" + rows)
    html = page(request(tmp_path, workload=str(trace)))
    found = Page(html)
    assert not found.tags & {"script", "b"} and "<script>alert(1)</script>" in found.text


def test_job_names_in_the_gantt_are_never_markup(tmp_path: Path) -> None:
    asked = request(tmp_path)
    ready = prepare(asked)
    named = replace(ready.prepared.workload, job_names=tuple(f"<script>{k}" for k in range(60)))
    html = make(asked, replace(ready, prepared=replace(ready.prepared, workload=named))).files[asked.output].decode()
    assert "&lt;script&gt;0, attempt 1: running" in html and "script" not in Page(html).tags


def test_several_seeds_are_paired_with_the_first_policy(tmp_path: Path) -> None:
    asked = request(tmp_path, seeds="1..6", policies=("fifo", "srtf", "las"))
    report = made(asked)
    seeds = report.json["seeds"]
    assert seeds["baseline"] == "fifo" and set(seeds["gains"]) == {"srtf", "las"} and len(seeds["results"]) == 18
    by_policy = {p: [e["avg_jct_s"] for e in seeds["results"] if e["policy"] == p] for p in ("fifo", "srtf")}
    gains = sorted((a - b) / a for a, b in zip(by_policy["fifo"], by_policy["srtf"], strict=True))
    gain = seeds["gains"]["srtf"]["avg_jct_s"]
    assert gain["pairs"] == 6 and gain["median_frac"] == pytest.approx((gains[2] + gains[3]) / 2)
    assert gains[0] <= gain["low_frac"] <= gain["high_frac"] <= gains[-1]
    text = Page(report.files[asked.output].decode()).text
    assert "6 seeds are compared: 1, 2, 3, 4, 5, 6" in text and "verdict" in text


def test_a_trace_is_one_pair_whatever_the_seeds(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    rows = "".join(f"2017-10-09 00:00:0{k},{100 - 10 * k},1,0,vc\n" for k in range(5))
    trace.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n" + rows)
    report = made(request(tmp_path, seeds="1..6", workload=f"{trace}:estimates=exact", cluster="1x1"))
    assert report.json["seeds"]["gains"]["srtf"]["avg_jct_s"]["pairs"] == 1
    assert report.json["seeds"]["gains"]["srtf"]["avg_jct_s"]["verdict"] == "unclear"
    assert any("equal runs count as one" in note for note in report.json["notes"])


def test_a_run_without_completions_has_a_page(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 00:00:00,100,16,0,vc\n")
    text = Page(page(request(tmp_path, workload=str(trace), cluster="1x8"))).text
    assert "No job completed." in text and "nothing to show" in text and "fifo: 1 rejected; their times are in no mean." in text


def test_what_was_changed_and_dropped_is_said(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    rows = "2017-10-09 00:00:00,100,2,0,vc\n2017-10-09 00:00:09,-1,1,0,vc\n2017-10-09 00:01:00,50,2,0,vc\n"
    trace.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n" + rows)
    asked = request(
        tmp_path, workload=str(trace), policies=("oracle-srtf",), window="0..1h", filter="gpus>=2", load="0.5",
        restart_cost="1m", checkpoint_every="10m", round="0", gantt="10..2m", skip=False,
    )  # fmt: skip
    report = made(asked)
    said = " ".join(report.json["notes"])
    for part in (
        "dropped 1 row",
        "0..1h",
        "gpus>=2",
        "a load of 0.5",
        "told the true run times",
        "at every event",
        "60 s to restore",
        "600 s",
    ):
        assert part in said
    assert report.json["gantt_window_s"] == [10, 120]  # at load 0.5 the second job comes at 75 s
    options = "--load 0.5 --round 0 --window 0..1h --filter 'gpus>=2' --restart-cost 1m --checkpoint-every 10m --no-skip"
    assert command_line(asked).endswith(f" --policy oracle-srtf {options} --gantt 10..2m -o {asked.output}")


# -- files ----------------------------------------------------------------------------------------------------------
def test_figures_are_written_as_svg_and_png(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    asked = request(tmp_path, svg=tmp_path / "svg", png=tmp_path / "png")
    write(made(asked))
    names = {"jct-cdf", "queue-length", "utilisation", "gantt-1", "gantt-2"}
    assert {path.name for path in tmp_path.iterdir()} == {"r.html", "svg", "png"}
    assert {path.name for path in (tmp_path / "svg").iterdir()} == {f"{name}.svg" for name in names}
    assert {path.name for path in (tmp_path / "png").iterdir()} == {f"{name}.png" for name in names}
    for path in (tmp_path / "svg").iterdir():
        root = ET.fromstring(path.read_text())
        assert root.get("viewBox") and "var(" not in path.read_text()
    for path in (tmp_path / "png").iterdir():
        content = path.read_bytes()
        assert content.startswith(PNG_SIGNATURE) and int.from_bytes(content[16:20], "big") == 2 * 960


def test_png_without_its_library_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(UserError, match=r"png: needs resvg, which is an extra: pip install 'headway\[report\]'"):
        prepare(request(tmp_path, png=tmp_path / "png"))


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(tmp_path, svg=tmp_path / "svg")
    report = made(asked)
    asked.output.write_text("the last report")
    write_bytes = Path.write_bytes

    def breaks(path: Path, content: bytes) -> int:
        if path.name == ".utilisation.svg.partial":
            raise OSError(28, "No space left on device", str(path))
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", breaks)
    with pytest.raises(UserError, match="cannot be written: No space left on device"):
        write(report)
    assert asked.output.read_text() == "the last report"
    assert {path.name for path in tmp_path.iterdir()} == {"r.html", "svg"} and not list((tmp_path / "svg").iterdir())


@pytest.mark.parametrize(("text", "seeds"), [("1..3", (1, 2, 3)), ("7", (7,)), ("5, 2,9..10", (5, 2, 9, 10)), ("0..0", (0,))])
def test_seeds_are_read(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


# -- the command ----------------------------------------------------------------------------------------------------
def test_the_command_writes_the_page_and_prints_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command([*SMALL, "-o", "r.html", "--json"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (err, told["files"], [entry["policy"] for entry in told["results"]]) == ("", ["r.html"], ["fifo", "srtf"])
    Page(Path("r.html").read_text())
    assert run_command([*SMALL, "--seed", "2", "-o", "s.html"]) == 0
    assert capsys.readouterr() == ("s.html\n", "")
    assert {path.name for path in tmp_path.iterdir()} == {"r.html", "s.html"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (SMALL, "Missing option '--output'"),
        ([*SMALL, "-o", "."], ".: output: is a folder"),
        ([*SMALL, "-o", "no/r.html"], "no/r.html: output: cannot be written: no such folder"),
        ([*SMALL, "-o", "r.html", "--svg", "file"], "file: svg: is not a folder"),
        ([*SMALL, "-o", "r.html", "--svg", "no/such"], "no/such: svg: cannot be made: no such folder"),
        ([*SMALL, "-o", "r.html", "--png", "file"], "file: png: is not a folder"),
        ([*SMALL, "-o", "r.html", "--policy", "fifo"], 'policy: "fifo" is asked for twice'),
        ([*SMALL, "-o", "r.html", "--policy", "srft"], "unknown policy 'srft' (did you mean 'srtf'?)"),
        ([*SMALL, "-o", "r.html", "--gantt", "5"], "gantt: expected START..END"),
        ([*SMALL, "-o", "r.html", "--gantt", "90d..91d"], "gantt: nothing is left to show: the last job ends after"),
        ([*SMALL, "-o", "r.html", "--gantt", "2h..1h"], "gantt: expected START before END"),
        ([*SMALL, "-o", "r.html", "--seed", "1", "--seeds", "1..3"], "seeds: expected --seed or --seeds, not both"),
        ([*SMALL, "-o", "r.html", "--seeds", "1..x"], "seeds: expected seeds such as 1..10"),
        ([*SMALL, "-o", "r.html", "--seeds", "3..1"], "seeds: expected seeds such as 1..10"),
        ([*SMALL, "-o", "r.html", "--seeds", "1..99999"], "seeds: expected seeds such as 1..10"),
        ([*SMALL, "-o", "r.html", "--seeds", ""], "seeds: expected seeds such as 1..10"),
        ([*SMALL, "-o", "r.html", "--seeds", "1,2,1"], "seeds: a seed stands twice"),
        ([*SMALL, "-o", "r.html", "--round", "nan"], "round: expected a duration"),
        ([*SMALL, "-o", "r.html", "--load", "-1"], "load: expected a number"),
    ],
)
def test_bad_input_is_one_line_and_exit_2_and_writes_nothing(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    assert run_command(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("headway: ") and message in err and err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


def test_dropped_rows_are_told_beside_the_report(tmp_path: Path, capsys: Captured) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 00:00:00,9,1,0,vc\n2017-10-09 00:00:00,9,0,0,vc\n")
    arguments = ["report", "-w", str(trace), "-c", "1x2", "-p", "fifo", "-o", str(tmp_path / "r.html")]
    assert run_command(arguments) == 0
    assert "dropped 1 row" in capsys.readouterr().err
