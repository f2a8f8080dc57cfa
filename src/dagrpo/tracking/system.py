"""How busy the machine is: processors, memory, disk, network and NVIDIA GPUs, under MLflow's names for them.

Sampled by the stage itself into its journal, so that a run has these curves wherever and whenever it is delivered;
MLflow's own monitor needs MLflow's import in a process beside the stage.
"""

import logging
import os
from importlib import import_module
from types import ModuleType

import psutil

logger = logging.getLogger(__name__)


class SystemMeter:
    """Reads the machine. Takes about a millisecond per reading; network traffic counts from when the meter was made."""

    def __init__(self) -> None:
        psutil.cpu_percent()  # the next one is the mean since this one
        self._received, self._sent = _traffic()
        self._gpus = GpuMeter.of_this_machine()

    def read(self) -> dict[str, float]:
        """Percentages, megabytes (10^6) and watts, by MLflow's names without their `system/`."""
        memory, disk = psutil.virtual_memory(), psutil.disk_usage(os.sep)
        received, sent = _traffic()
        values = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / 1e6,
            "system_memory_usage_percentage": memory.used / memory.total * 100,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / 1e6,
            "disk_available_megabytes": disk.free / 1e6,
            "network_receive_megabytes": (received - self._received) / 1e6,
            "network_transmit_megabytes": (sent - self._sent) / 1e6,
        }
        return values | (self._gpus.read() if self._gpus else {})


class GpuMeter:
    """Reads NVIDIA GPUs through their management library."""

    def __init__(self, library: ModuleType) -> None:
        library.nvmlInit()
        self._library = library
        self._gpus = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]

    @classmethod
    def of_this_machine(cls) -> "GpuMeter | None":
        """None where there is no NVIDIA GPU, or no library that reads it."""
        try:
            pynvml = import_module("pynvml")  # in the GPU requirements only
        except ImportError:
            return None
        try:
            return cls(pynvml)
        except pynvml.NVMLError as error:
            logger.info("no GPU is metered: %s", error)
            return None

    def read(self) -> dict[str, float]:
        """What can be read of each GPU; some do not tell their power or their utilization."""
        values: dict[str, float] = {}
        for index, gpu in enumerate(self._gpus):
            try:
                memory = self._library.nvmlDeviceGetMemoryInfo(gpu)
                values[f"gpu_{index}_memory_usage_percentage"] = memory.used / memory.total * 100
                values[f"gpu_{index}_memory_usage_megabytes"] = memory.used / 1e6
                values[f"gpu_{index}_utilization_percentage"] = self._library.nvmlDeviceGetUtilizationRates(gpu).gpu
                values[f"gpu_{index}_power_usage_watts"] = self._library.nvmlDeviceGetPowerUsage(gpu) / 1000
            except self._library.NVMLError as error:
                logger.debug("GPU %d is metered in part: %s", index, error)
        return values


def _traffic() -> tuple[float, float]:
    """Bytes received and sent since the machine was started; 0 where it has no network."""
    counters = psutil.net_io_counters()
    return (counters.bytes_recv, counters.bytes_sent) if counters else (0.0, 0.0)
