import gc
import multiprocessing
import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from dagrpo_sglang_cpu import plugin


def test_the_plugin_does_nothing_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = set(sys.modules)
    plugin.register()
    assert set(sys.modules) == before


HOOKS = """
from dagrpo_sglang_cpu import plugin
from sglang.srt.plugins.hook_registry import HookRegistry
plugin.register()
for target, hooks in HookRegistry._hooks.items():
    for kind, hook, _ in hooks:
        print(target.rpartition(".")[2], kind.value, hook.__name__)
"""


@pytest.mark.nightly
def test_the_size_of_every_model_is_known_before_its_weights_are_packed() -> None:
    """Else a model of any size would be there twice."""
    environment = os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_PLUGINS": "none"}
    command = [sys.executable, "-c", HOOKS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "load_model after count" in done.stdout.splitlines(), done.stderr[-2000:]


def test_processes_are_forked_only_from_a_process_of_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    methods: list[str] = []
    monkeypatch.setattr(multiprocessing, "set_start_method", lambda method, force: methods.append(method))
    monkeypatch.setattr(plugin, "_threads", lambda: 2)
    plugin.fork_processes(None)
    assert methods == []
    monkeypatch.setattr(plugin, "_threads", lambda: 1)
    plugin.fork_processes(None)
    assert methods == ["fork"]
    gc.unfreeze()


def test_memory_is_left_unpinned_in_the_lora_modules_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def pinned(tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no accelerator")

    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    for name in plugin.LORA_MODULES:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    plugin.unpin_lora()
    lora = vars(sys.modules[plugin.LORA_MODULES[0]])
    exec("made = torch.ones(2, pin_memory=True).pin_memory(); kind = torch.float32", lora)
    assert lora["made"].tolist() == [1.0, 1.0]
    assert lora["kind"] is torch.float32
    with pytest.raises(RuntimeError, match="no accelerator"):
        torch.ones(2).pin_memory()
