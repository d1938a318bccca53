"""The systemd unit: what it must say so that jobs outlive the controller, and that systemd understands it."""

import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parents[1] / "packaging" / "headway.service"


@pytest.mark.parametrize(
    "line",
    ["KillMode=process", "Delegate=yes", "Restart=on-failure", "ExecReload=/bin/kill -HUP $MAINPID", "OOMPolicy=continue"],
)
def test_jobs_outlive_the_controller(line: str) -> None:
    assert line in UNIT.read_text("utf-8").splitlines()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_it(tmp_path: Path) -> None:
    unit = tmp_path / "headway.service"
    unit.write_text(UNIT.read_text("utf-8").replace("/opt/headway/bin/headway", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
