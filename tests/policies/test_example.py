"""The policy of the docs: the page shows the file as it is, and the file holds a good policy."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from headway.policies.registry import REGISTRY, entry
from headway.sim.run import simulate
from headway.testing.builders import cluster, job, workload
from headway.testing.gantt import gantt
from headway.testing.policy_checks import check_policy

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "policies.md").read_text("utf-8")


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("policy_example", ROOT / "examples" / "policy_example.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_file() -> None:
    code = PAGE.partition("```python\n")[2].partition("```")[0]
    assert code == (ROOT / "examples" / "policy_example.py").read_text("utf-8")


def test_the_example_passes_the_checks() -> None:
    check_policy(example().SmallestFirst)


def test_the_example_runs() -> None:
    """b (2 GPUs) came first, c (1 GPU) goes first when a ends; b has to wait for both GPUs."""
    load = workload([job("a", 2, 2), job("b", 2, 2, 1), job("c", 1, 1, 1)])
    run = simulate(load, cluster([2]), example().SmallestFirst(), interval_s=1, keep_journal=True)
    assert run.journal is not None
    assert gantt(run.journal) == "n0.0 |aacbb\nn0.1 |aa.bb"


def test_the_page_lists_every_policy_and_parameter() -> None:
    for name in REGISTRY:
        assert f"| `{name}` |" in PAGE, name
        for parameter, default, _ in entry(name).params:
            shown = (
                str(default).lower() if isinstance(default, bool) else f"{default:g}" if isinstance(default, float) else default
            )
            assert f"`{parameter}={shown}`" in PAGE, (name, parameter)
