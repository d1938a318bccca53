"""The GPUs of this machine by NVML: what they are, what they do, and what is wrong with them.

Through ctypes on the driver's own `libnvidia-ml.so.1`, so that nothing has to be installed. Where that library or a driver is
missing there are no GPUs. A device is known by its UUID: indices change with a reboot, and with a card that has gone.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

LIBRARY = "libnvidia-ml.so.1"
NOT_SUPPORTED = 3
GPU_IS_LOST = 15
TEXT_BYTES = 96
UNCORRECTED, SINCE_BOOT = 1, 0


class NvmlError(Exception):
    """NVML could not do what was asked; `code` is its own."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Gpu(NamedTuple):
    """One device. `number` is its index at present, `memory_bytes` all of its memory."""

    number: int
    uuid: str
    name: str
    memory_bytes: int


class GpuUse(NamedTuple):
    """What a device does now: `busy_milli` is the part of the last sample period in which a kernel ran, in thousandths."""

    busy_milli: int
    memory_used_bytes: int


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Nvml:
    """An opened library. `open` gives None where there is none; `close` it at the end."""

    def __init__(self, library: Any) -> None:
        self._library = library
        library.nvmlErrorString.restype = ctypes.c_char_p
        self._call("nvmlInit_v2")
        self._handles: dict[str, ctypes.c_void_p] = {}

    @classmethod
    def open(cls, library: str = LIBRARY) -> Nvml | None:
        try:
            return cls(ctypes.CDLL(library))
        except (OSError, AttributeError, NvmlError):
            return None

    def close(self) -> None:
        try:
            self._call("nvmlShutdown")
        except NvmlError:
            return

    def gpus(self) -> tuple[Gpu, ...]:
        """All devices that answer, by index. One that has fallen off the bus is left out."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = []
        for index in range(count.value):
            try:
                handle = ctypes.c_void_p()
                self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
                uuid, name = self._text("nvmlDeviceGetUUID", handle), self._text("nvmlDeviceGetName", handle)
                found.append(Gpu(index, uuid, name, self._memory(handle).total))
                self._handles[uuid] = handle
            except NvmlError:
                continue
        return tuple(found)

    def use(self, uuid: str) -> GpuUse:
        """What a device does. Raises `NvmlError`."""
        handle = self._handle(uuid)
        rates = _Utilization()
        try:
            self._call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates))
        except NvmlError as error:
            if error.code != NOT_SUPPORTED:  # As on a device that is cut in instances.
                raise
        return GpuUse(min(rates.gpu, 100) * 10, self._memory(handle).used)

    def fault(self, uuid: str) -> str:
        """Why no job should be given this device; empty if nothing is known against it."""
        try:
            handle = self._handle(uuid)
            errors = ctypes.c_ulonglong()
            if self._tried("nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, SINCE_BOOT, ctypes.byref(errors)) and errors.value:
                return f"GPU {uuid}: {errors.value} uncorrected memory errors since its driver was loaded"
            rows = [ctypes.c_uint() for _ in range(4)]
            if self._tried("nvmlDeviceGetRemappedRows", handle, *map(ctypes.byref, rows)) and rows[3].value:
                return f"GPU {uuid}: a broken memory row could not be remapped"
            self._memory(handle)
        except NvmlError as error:
            gone = error.code == GPU_IS_LOST
            return f"GPU {uuid}: {'it has fallen off the bus' if gone else error}"
        return ""

    def _tried(self, function: str, *arguments: Any) -> bool:
        """Call what not every driver and device has; whether it has answered. Raises where the device is lost."""
        try:
            self._call(function, *arguments)
        except AttributeError:
            return False
        except NvmlError as error:
            if error.code == GPU_IS_LOST:
                raise
            return False
        return True

    def _handle(self, uuid: str) -> ctypes.c_void_p:
        if uuid not in self._handles:
            self.gpus()
        if uuid not in self._handles:
            raise NvmlError(GPU_IS_LOST, "there is no such device any more")
        return self._handles[uuid]

    def _memory(self, handle: ctypes.c_void_p) -> _Memory:
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return memory

    def _text(self, function: str, handle: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(TEXT_BYTES)
        self._call(function, handle, buffer, ctypes.c_uint(TEXT_BYTES))
        return buffer.value.decode("utf-8", "replace")

    def _call(self, function: str, *arguments: Any) -> None:
        code = int(getattr(self._library, function)(*arguments))
        if code != 0:
            said = self._library.nvmlErrorString(ctypes.c_int(code))
            raise NvmlError(code, said.decode("utf-8", "replace") if said else f"NVML error {code}")


def find_gpus(library: str = LIBRARY) -> tuple[Gpu, ...]:
    """The GPUs of this machine; none where there is no driver."""
    nvml = Nvml.open(library)
    if nvml is None:
        return ()
    try:
        return nvml.gpus()
    except NvmlError:
        return ()
    finally:
        nvml.close()
