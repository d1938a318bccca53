"""The shipped catalogue, and the command that fits it."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from headway.core.errors import UserError
from headway.perf import evaluate, fit
from headway.perf.calibrate import STRATA, Calibration, as_json, measure, shipped
from headway.perf.catalogue import catalogue, find, parse_catalogue
from headway.perf.document import markers, replace_section, table
from headway.perf.measured import GAVEL_MODELS, POLLUX_MODELS, SOURCES, ZEUS_MODELS, Row, chain_shares, gavel
from headway.perf.series import Series, make_series

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("HEADWAY_DATASETS", ROOT.parent / "shared" / "data"))
needs_data = pytest.mark.skipif(not (DATA / "perf").is_dir(), reason="the public tables are not here")


def test_the_catalogue_is_complete() -> None:
    models = catalogue()
    assert len(models) >= 20
    for model in models.values():
        assert model.steps or model.epochs or model.curves or model.chain_shares_ppm
        for entry in (*model.steps.values(), *model.epochs.values(), *model.curves.values()):
            assert entry.fitted.source in SOURCES
            assert entry.fitted.licence
            assert entry.fitted.rows >= 1
            assert (entry.fitted.error_median is None) == (entry.fitted.held_out == 0)
        for entry in model.steps.values():
            assert np.all(entry.params[1:] >= 0)
            assert entry.params[7] >= 1
        for parts, shares in model.chain_shares_ppm.items():
            assert len(shares) == parts
            assert sum(shares) == 1_000_000


def test_known_sizes() -> None:
    # VGG-16 has 138,357,544 parameters, ResNet-50 25,557,032.
    assert find("vgg16").gradient_bytes == pytest.approx(4 * 138_357_544, rel=0.001)
    assert find("resnet50").parameters == pytest.approx(25_557_032, rel=0.001)


def test_the_catalogue_holds_no_tables() -> None:
    assert len((ROOT / "src/headway/perf/catalogue.json").read_bytes()) < 64_000


def test_curves_go_from_start_to_end() -> None:
    curve = find("resnet50-imagenet").curves["mlperf/resnet"]
    assert curve.value_at(np.array([0.0, curve.k_end, 2 * curve.k_end])) == pytest.approx([curve.start, curve.end, curve.end])
    assert np.all(np.diff(curve.value_at(np.linspace(0, curve.k_end, 20))) > 0)


@needs_data
def test_the_shipped_catalogue_is_what_the_command_gives() -> None:
    content, _ = fit.fit_catalogue(DATA)
    fresh, known = parse_catalogue(fit.as_json(content)), catalogue()
    assert set(fresh) == set(known)
    for name, model in known.items():
        again = fresh[name]
        assert again.gradient_bytes == model.gradient_bytes
        assert set(again.steps) == set(model.steps)
        assert set(again.curves) == set(model.curves)
        for kind, step in model.steps.items():
            for workers, nodes in ((1, 1), (4, 1), (8, 2)):
                batch = (step.batch_min * step.batch_max) ** 0.5
                two = [float(fit.step_s(s.params, workers, 0, nodes, batch)) for s in (step, again.steps[kind])]
                assert two[0] == pytest.approx(two[1], rel=0.02)
        for family, curve in model.curves.items():
            assert again.curves[family].k_end == pytest.approx(curve.k_end, rel=0.01)


def test_steps_of_a_made_up_table_come_back() -> None:
    """Compute 20 ms + 1 ms a sample, exchange 30 ms (one node) and 90 ms + 2 ms a worker (several), added; 3 % noise."""
    rng = np.random.default_rng(1)
    rows = []
    for workers, nodes in ((1, 1), (2, 1), (4, 1), (2, 2), (4, 4), (8, 4), (16, 8)):
        for batch in (8, 16, 32, 64, 128):
            sync = 0.0 if workers == 1 else 0.03 if nodes == 1 else 0.09 + 0.002 * (workers - 2)
            time_s = (0.02 + 0.001 * batch + sync) * (1 + 0.03 * rng.uniform(-1, 1))
            rows.append(Row("gavel", "made-up", "v100", time_s, workers, nodes, float(batch)))
    content, error = fit.fit_steps(rows)
    assert content["held_out"] == len(error) == sum(row.held_out for row in rows) > 3
    assert content["error"]["median"] < 0.04
    assert content["compute_s_per_sample"] == pytest.approx(0.001, rel=0.15)
    assert fit.fit_steps(rows)[0] == content


def test_epochs_of_a_made_up_table_come_back() -> None:
    rows = [Row("zeus", "made-up", "v100", 10 + 640 / b, 1, 1, float(b)) for b in (8, 16, 32, 64, 128, 256)]
    content, error = fit.fit_epochs(rows)
    assert (content["epoch_s"], content["step_s"]) == pytest.approx((10, 640), rel=1e-4)
    assert np.all(error < 1e-4)


def made_up_runs(count: int) -> list[Series]:
    rng = np.random.default_rng(2)
    k = np.arange(1.0, 101)
    runs = []
    for i in range(count):
        y = 0.9 - 0.8 / (1 + 0.2 * k / rng.uniform(0.8, 1.25)) + 0.004 * rng.normal(size=100)
        runs.append(make_series("mlperf", "made-up", f"group {i}", k, y, True))
    return [run for run in runs if run]


def test_a_family_shape_of_made_up_runs_comes_back() -> None:
    content, error = fit.fit_shape(made_up_runs(30))
    assert content["rising"] is True
    assert content["power"] in (0.6, 1.0, 1.5)
    assert np.median(error) < 0.03


def test_gavel_counts_the_steps_of_all_workers(tmp_path: Path) -> None:
    speeds = {"v100": {"('A3C', 1)": {"null": 4.0, "('A3C', 1)": [1, 1]}, "('LM (batch size 5)', 2)": {"null": 8.0}}}
    speeds["v100_unconsolidated"] = {"('A3C', 1)": {"null": 4.0}, "('LM (batch size 5)', 2)": {"null": 0.0}}
    path = tmp_path / "table.json.gz"
    path.write_bytes(gzip.compress(json.dumps(speeds).encode()))
    assert gavel(path) == [
        Row("gavel", "a3c-pong", "v100", 0.25, 1, 1, 1.0),
        Row("gavel", "lstm-wikitext2", "v100", 0.25, 2, 1, 5.0),
    ]


def test_a_chain_is_cut_by_time() -> None:
    # Times 4 1 1 2: halves are {4} and {1 1 2}; parameters 1, 0, 0, 3.
    assert chain_shares([4, 1, 1, 2], [1, 0, 0, 3], 2) == [250_000, 750_000]
    assert sum(chain_shares([1, 1, 1], [1, 1, 1], 8)) == 1_000_000


def test_targets_of_runs() -> None:
    k = np.arange(1.0, 21)
    run = make_series("t", "f", "g", k, np.minimum(k, 15), True)
    # The mirrored ends make the smoothed first value 2: 98 % of the way to 15 is 14.74, first reached at 15.
    assert run is not None
    assert (run.target, run.k_target) == (pytest.approx(14.74), 15)
    assert make_series("t", "f", "g", k, np.minimum(k, 15), True, target=16) is None
    assert make_series("t", "f", "g", k, np.ones(20), True) is None
    assert make_series("t", "f", "g", k[:5], k[:5], True) is None


def test_factors_make_intervals_cover() -> None:
    """Logs of (true / predicted) with a standard deviation of 0.6 where 0.3 is claimed."""
    rng = np.random.default_rng(3)
    n = 20_000
    left, stratum = 0.6 * rng.normal(size=n), rng.integers(0, STRATA, n)
    found = measure(left, np.full(n, 0.3), rng.normal(size=n), np.full(n, 0.5), stratum)
    # 1.645 · 0.6 / 0.3; |error| < 1.645 in nine of ten
    assert found.late == pytest.approx(np.full(STRATA, 3.29), rel=0.15)
    assert found.plateau == pytest.approx(np.full(STRATA, 3.29), rel=0.1)
    assert found.early == pytest.approx(0.987, rel=0.05)
    assert json.loads(as_json(found))["early"] == round(found.early, 3)


def test_the_shipped_factors_are_whole() -> None:
    assert len(shipped().late) == len(shipped().plateau) == STRATA
    assert int(Calibration.stratum(np.array([50.0]), np.array([99]), np.array([True]))[0]) == STRATA - 1


def test_evaluation_of_made_up_runs_covers() -> None:
    runs = made_up_runs(120)
    fitted, held = [r for r in runs if not r.held_out], [r for r in runs if r.held_out]
    calibration = evaluate.calibrate(fitted)
    c = evaluate.cases(held)
    judged = evaluate.ours(c, evaluate.fits(c, None, calibration))
    assert 0.8 <= judged.covers.mean() <= 1
    text = evaluate.report(c, calibration, evaluate.family_ends(fitted))
    assert text.count("| Headway, curve alone |") == 3


def test_sections_of_a_page() -> None:
    begin, end = markers("x")
    page = f"a\n{begin}\nold\n{end}\nb\n"
    assert replace_section(page, "x", "new") == f"a\n{begin}\n\nnew\n\n{end}\nb\n"
    assert replace_section(replace_section(page, "x", "1"), "x", "new") == replace_section(page, "x", "new")
    with pytest.raises(UserError, match="expected the lines"):
        replace_section("nothing", "x", "new")
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_commands_refuse_a_folder_without_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit.main(["--data", str(tmp_path), "-o", str(tmp_path / "out.json")]) == 2
    assert evaluate.main(["--data", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("expected a folder that holds") == 2
    assert not (tmp_path / "out.json").exists()


@needs_data
def test_the_page_is_generated() -> None:
    page = (ROOT / "docs/models.md").read_text("utf-8")
    for section in (fit.SECTION, evaluate.SECTION):
        begin, end = markers(section)
        assert page.index(end) - page.index(begin) > 500
    assert f"{len(catalogue())} models." in page


def test_the_models_of_the_tables_are_in_the_catalogue() -> None:
    assert {*GAVEL_MODELS.values(), *POLLUX_MODELS.values(), *ZEUS_MODELS.values()} <= set(catalogue())
