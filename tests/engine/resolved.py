"""Prints what SGLang decides for command lines of servers on made-up GPUs.

Reads [{"command": [...], "capability": [9, 0], "mebibytes": 81559, "name": "NVIDIA H100"}, ...] from standard input and prints as many
objects. A process of its own: it makes up what only a GPU's environment has. Each case is a fork, as SGLang remembers its card.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from transformers import AutoModel, AutoProcessor  # noqa: F401  before packages are made up

ONLY_WITH_A_GPU = ("torchvision", "sgl_kernel", "flashinfer", "torchaudio", "torchcodec")
SHOWN = (
    "attention_backend",
    "sampling_backend",
    "mem_fraction_static",
    "max_total_tokens",
    "max_running_requests",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "enable_deterministic_inference",
    "enable_memory_saver",
    "enable_fp32_lm_head",
    "lora_backend",
    "tp_size",
    "disable_custom_all_reduce",
    "enable_torch_symm_mem",
    "dtype",
)
EXPORTED = ("NCCL_ALGO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")  # to the processes of a server


class MadeUpPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages without content in the place of those that only a GPU's environment has."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in ONLY_WITH_A_GPU:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module: ModuleType = mock.MagicMock(__spec__=spec, __path__=[], __version__="0.0")
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def made_up_gpus(capability: tuple[int, int], mebibytes: int, name: str) -> Iterator[None]:
    """Have torch answer as if the machine had eight such GPUs."""
    properties = mock.Mock(major=capability[0], minor=capability[1], total_memory=mebibytes << 20)
    properties.name, properties.multi_processor_count = name, 132
    answers = {
        "is_available": True,
        "device_count": 8,
        "current_device": 0,
        "get_device_capability": capability,
        "get_device_properties": properties,
        "get_device_name": name,
        "mem_get_info": (mebibytes << 20, mebibytes << 20),
        "init": None,
        "_lazy_init": None,
    }
    with ExitStack() as stack:
        for asked, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, asked, lambda *_, answer=answer, **__: answer))
        stack.enter_context(mock.patch.object(torch.version, "cuda", "13.0"))
        yield


def resolved(case: dict[str, Any]) -> dict[str, Any]:
    """Return what SGLang decides for a case, or {"refused": why}."""
    import sglang.srt.server_args as server_args

    with made_up_gpus(tuple(case["capability"]), case["mebibytes"], case["name"]):
        try:
            args = server_args.prepare_server_args(case["command"][3:])
            args.resolve_once()
            args.check_server_args()
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it is, it is the answer
            return {"refused": f"{type(error).__name__}: {error}"}
        decided = args.resolved_dict()
    graphs = {"largest_graph": decided["cuda_graph_config"]["decode"]["max_bs"]}
    return {name: decided[name] for name in SHOWN} | graphs | {name: os.environ.get(name) for name in EXPORTED}


def modules_of(case: dict[str, Any]) -> list[str]:
    """Return the names of the modules that SGLang has imported when it has decided."""
    resolved(case)
    return [*sys.modules]


def in_a_fork(work: Callable[[dict[str, Any]], Any], case: dict[str, Any]) -> Any:
    """Return what a child of this process makes of a case."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        with os.fdopen(writing, "w") as file:
            json.dump(work(case), file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.wait()
    return json.loads(text)


def main() -> None:
    cases = json.load(sys.stdin)
    if importlib.util.find_spec("sgl_kernel") is None:
        sys.meta_path.append(MadeUpPackages())
    with made_up_gpus((9, 0), 81_559, "NVIDIA H100"):
        import sglang.srt.server_args  # noqa: F401  once, before the forks

        for name in in_a_fork(modules_of, cases[0]):  # what it imports while it decides takes most of a case's time
            if name.startswith(("sglang", "transformers")):
                with suppress(ImportError):
                    importlib.import_module(name)
    print(json.dumps([in_a_fork(resolved, case) for case in cases]))


if __name__ == "__main__":
    main()
