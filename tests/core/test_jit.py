"""A module's compiled kernels are kept by a digest of all that they can depend on."""

from pathlib import Path

from headway.core import jit


def package(folder: Path) -> Path:
    (folder / "core").mkdir(parents=True)
    (folder / "core" / "codes.py").write_text("A = 1\n")
    (folder / "core" / "low.py").write_text("from headway.core import (\n    codes as c,\n)\nB = c.A\n")
    (folder / "core" / "high.py").write_text("def f():\n    from headway.core.low import B\n    return B\n")
    (folder / "core" / "beside.py").write_text("C = 1\n")
    return folder


def test_imports_of_finds_modules_names_and_lines_in_brackets(tmp_path):
    core = package(tmp_path / "p") / "core"
    assert jit.imports_of(core / "low.py", tmp_path / "p") == {core / "codes.py"}
    assert jit.imports_of(core / "high.py", tmp_path / "p") == {core / "low.py"}


def test_digest_changes_with_what_a_module_imports_and_only_with_that(tmp_path):
    one, two, three = (package(tmp_path / name) for name in "abc")
    (two / "core" / "codes.py").write_text("A = 2\n")
    (three / "core" / "beside.py").write_text("C = 2\n")
    before, after, beside = (jit.source_digest(p / "core" / "high.py", p) for p in (one, two, three))
    assert before != after
    assert before == beside


def test_all_kernel_modules_are_seen_through_their_imports():
    """The world's kernels know the columns that are frozen into them."""
    seen, rest = set(), [jit.PACKAGE / "sim" / "kernels.py"]
    while rest:
        fresh = jit.imports_of(rest.pop()) - seen
        seen |= fresh
        rest += fresh
    assert {jit.PACKAGE / "core" / "columns.py", jit.PACKAGE / "core" / "codes.py"} <= seen
