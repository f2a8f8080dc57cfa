"""The load of the machine as a stage samples it."""

from types import ModuleType, SimpleNamespace

from dagrpo.tracking.system import GpuMeter, SystemMeter


class NvmlError(Exception):
    """As pynvml.NVMLError."""


def library_of_one_gpu() -> ModuleType:
    """A management library for one GPU of 80 GB, which does not tell its power."""

    def power(gpu: str) -> int:
        raise NvmlError

    library = ModuleType("pynvml")
    library.__dict__.update(
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: f"gpu {index}",
        nvmlDeviceGetMemoryInfo=lambda gpu: SimpleNamespace(used=20e9, total=80e9),
        nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(gpu=37),
        nvmlDeviceGetPowerUsage=power,
    )
    return library


def test_a_gpu_tells_what_it_can() -> None:
    assert GpuMeter(library_of_one_gpu()).read() == {
        "gpu_0_memory_usage_percentage": 25.0,
        "gpu_0_memory_usage_megabytes": 20_000.0,
        "gpu_0_utilization_percentage": 37,
    }


def test_percentages_are_percentages_and_traffic_counts_from_the_start() -> None:
    values = SystemMeter().read()
    assert all(0 <= value <= 100 for name, value in values.items() if name.endswith("percentage"))
    assert 0 <= values["network_receive_megabytes"] < 1000
    assert values["system_memory_usage_megabytes"] > 10
