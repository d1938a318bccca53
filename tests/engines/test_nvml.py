"""NVML against a library of our own, compiled here: two good GPUs, one that is broken and one that is gone, as its file says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from headway.core.errors import UserError
from headway.engines.nodes import kind_of
from headway.engines.nvml import GPU_IS_LOST, Gpu, GpuUse, Nvml, NvmlError, find_gpus
from headway.engines.usage import Sampler
from headway.runtime.machine import share_gpus

LIBRARY = r"""
#include <stdio.h>
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } rates_t;
static int lost = -1, broken = -1, uncorrected = 0;
static int opened = 0;
void fake(int l, int b, int e) { lost = l; broken = b; uncorrected = e; }
int fake_opened(void) { return opened; }
static int at(void *h) { return (int)(long)h - 1; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "Not Supported"; }
int nvmlInit_v2(void) { opened++; return 0; }
int nvmlShutdown(void) { opened--; return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { if ((int)i == lost) return 15; *h = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) { snprintf(s, n, "GPU-%d", at(h)); return 0; }
int nvmlDeviceGetName(void *h, char *s, unsigned n) { strncpy(s, "NVIDIA A100-SXM4-80GB", n); return 0; }
int nvmlDeviceGetMemoryInfo(void *h, memory_t *m) {
  if (at(h) == lost) return 15;
  m->total = 80ULL << 30; m->used = (unsigned long long)(at(h) + 1) << 30; m->free = m->total - m->used; return 0; }
int nvmlDeviceGetUtilizationRates(void *h, rates_t *r) {
  if (at(h) == lost) return 15;
  if (at(h) == 2) return 3;
  r->gpu = 40 + 50 * at(h); r->memory = 1; return 0; }
int nvmlDeviceGetTotalEccErrors(void *h, int type, int counter, unsigned long long *n) {
  if (at(h) == lost) return 15;
  if (type != 1 || counter != 0) return 2;
  *n = at(h) == broken ? uncorrected : 0; return 0; }
int nvmlDeviceGetRemappedRows(void *h, unsigned *c, unsigned *u, unsigned *p, unsigned *f) {
  *c = *u = *p = 0; *f = at(h) == broken && !uncorrected; return 0; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "fake.c").write_text(LIBRARY)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libfake.so", folder / "fake.c"], check=True)
    return folder / "libfake.so"


def test_gpus_are_known_by_uuid(library: Path) -> None:
    assert find_gpus(str(library)) == tuple(Gpu(i, f"GPU-{i}", "NVIDIA A100-SXM4-80GB", 80 << 30) for i in range(3))


def test_without_a_library_there_are_none(tmp_path: Path) -> None:
    assert find_gpus(str(tmp_path / "libnvidia-ml.so.1")) == ()
    assert Nvml.open(str(tmp_path / "libnvidia-ml.so.1")) is None


def test_what_they_do(library: Path) -> None:
    nvml = Nvml.open(str(library))
    assert nvml is not None
    assert nvml.use("GPU-1") == GpuUse(900, 2 << 30)
    assert nvml.use("GPU-2") == GpuUse(0, 3 << 30)  # It can't tell how busy it is.
    with pytest.raises(NvmlError) as raised:
        nvml.use("GPU-9")
    assert raised.value.code == GPU_IS_LOST
    sampler = Sampler(["GPU-1", "GPU-0", "GPU-9"], nvml)
    assert sampler._gpu_milli([0, 1], 0) == 900 + 400
    assert sampler._gpu_milli([2, 0], 5000) == 900
    nvml.close()


def test_what_is_wrong_with_them(library: Path) -> None:
    nvml = Nvml.open(str(library))
    assert nvml is not None
    assert nvml.fault("GPU-0") == ""
    fake = nvml._library.fake
    try:
        fake(-1, 0, 7)
        assert nvml.fault("GPU-0") == "GPU GPU-0: 7 uncorrected memory errors since its driver was loaded"
        assert nvml.fault("GPU-1") == ""
        fake(-1, 1, 0)
        assert nvml.fault("GPU-1") == "GPU GPU-1: a broken memory row could not be remapped"
        fake(0, -1, 0)
        assert nvml.fault("GPU-0") == "GPU GPU-0: it has fallen off the bus"
        assert [gpu.uuid for gpu in nvml.gpus()] == ["GPU-1", "GPU-2"]
    finally:
        fake(-1, -1, 0)
        nvml.close()
    assert nvml._library.fake_opened() == 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx"),
        ("", "gpu"),
    ],
)
def test_kinds_are_what_job_files_say(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_gpus_are_dealt_out_to_the_nodes_in_order() -> None:
    uuids = ["a", "b", "c", "d"]
    assert share_gpus("", 0, uuids) == ({"n0": 4}, {"n0": ("a", "b", "c", "d")})
    assert share_gpus("2x2", 0, uuids) == ({"n0": 2, "n1": 2}, {"n0": ("a", "b"), "n1": ("c", "d")})
    assert share_gpus("2x2", 2, uuids) == ({"n0": 2, "n1": 2}, {})
    assert share_gpus("", 3, uuids) == ({"n0": 3}, {})
    assert share_gpus("2x4", 0, []) == ({"n0": 4, "n1": 4}, {})
    with pytest.raises(UserError, match=r"wants 8 GPUs, this machine has 4; with --slots they need not be real"):
        share_gpus("2x4", 0, uuids)
    with pytest.raises(UserError, match=r"has 4 slots a node, --slots says 3"):
        share_gpus("2x4", 3, uuids)
