"""SGLang on a CPU: modules for a GPU that are found as stubs, and what is patched."""

import gc
import importlib.metadata
import multiprocessing
import os
import subprocess
import sys
import sysconfig
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch
from dagrpo_sglang_cpu import plugin
from dagrpo_sglang_cpu.finder import STUBBED, StubFinder
from dagrpo_sglang_cpu.stubs.sgl_kernel import NAMED_AT_IMPORT

SOURCE = Path(__file__).parents[1] / "src"


def run_python(code: str, **environment: str) -> str:
    """The output of a fresh interpreter, in which only the installed package and its .pth file are at work."""
    inherited = {key: value for key, value in os.environ.items() if key != "SGLANG_USE_CPU_ENGINE"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=inherited | environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr.strip().rpartition("\n")[2]


def stub(name: str) -> ModuleType:
    spec = StubFinder().find_spec(name, None)
    assert isinstance(spec, ModuleSpec)
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_installed_package_is_the_one_in_the_repository() -> None:
    site_packages = sysconfig.get_path("purelib")  # there alone: other tests put folders on sys.path
    (package,) = importlib.metadata.distributions(name="dagrpo-sglang-cpu", path=[site_packages])
    files = package.files or []
    installed = {str(file): Path(str(file.locate())) for file in files if file.suffix in (".py", ".pth")}
    source = {str(path.relative_to(SOURCE)): path for path in SOURCE.rglob("*") if path.suffix in (".py", ".pth")}
    assert installed.keys() == source.keys()
    stale = [name for name, path in source.items() if path.read_bytes() != installed[name].read_bytes()]
    assert not stale, "install packages/dagrpo_sglang_cpu again"


def test_without_the_switch_nothing_is_imported_and_nothing_is_stubbed() -> None:
    out = run_python("import sys; print([name for name in sys.modules if 'dagrpo' in name]); import torchvision")
    assert out.startswith("[]\n")
    assert "ModuleNotFoundError: No module named 'torchvision'" in out
    code = "import sys; import dagrpo_sglang_cpu; print('torch' in sys.modules, 'sglang' in sys.modules)"
    assert run_python(code) == "False False\n", "the package itself imports nothing"


def test_with_the_switch_the_stubs_come_last_and_unneeded_packages_are_hidden() -> None:
    code = (
        "import sys; print(type(sys.meta_path[-1]).__name__, 'torch' in sys.modules)\n"
        "import torchvision.transforms.v2.functional, sgl_kernel, importlib.util as u\n"
        "print(torchvision.__version__, u.find_spec('sgl_kernel.mamba'), u.find_spec('sklearn'))"
    )
    out = run_python(code, SGLANG_USE_CPU_ENGINE="1")
    assert out == "StubFinder False\n0.28.0 None None\n"


@pytest.mark.nightly
def test_an_installed_package_wins_and_is_not_mixed_with_the_stub(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("REAL = True\n")
    code = "import torchvision; print(torchvision.REAL); import torchvision.ops"
    out = run_python(code, SGLANG_USE_CPU_ENGINE="1", PYTHONPATH=str(tmp_path))
    assert out == "True\nModuleNotFoundError: No module named 'torchvision.ops'"


def test_nothing_is_stubbed_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [StubFinder().find_spec(name, None) for name in STUBBED if "." not in name] == [None, None]


def test_names_of_stubs_can_be_imported_and_refuse_to_be_called_but_for_the_hash() -> None:
    kernels = stub("sgl_kernel")
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.fused_experts needs a GPU"):
        kernels.fused_experts(1, 2)
    with pytest.raises(AttributeError):
        _ = kernels.__version__
    for name in NAMED_AT_IMPORT:
        operator = getattr(torch.ops.sgl_kernel, name)
        with pytest.raises(NotImplementedError, match=name):
            operator()
    hashed = torch.ops.sgl_kernel.murmur_hash32_cpu.default
    assert hashed(torch.tensor([1], dtype=torch.uint64), torch.tensor([2]), torch.arange(3)).shape == (1, 3)
    transforms = stub("torchvision.transforms")
    assert transforms.InterpolationMode.BICUBIC == 3
    with pytest.raises(NotImplementedError, match="install torchvision"):
        transforms.Resize(224)


@pytest.mark.nightly
def test_what_prepares_the_pictures_of_qwen_models_can_be_imported() -> None:
    code = "import sglang.srt.multimodal.processors.qwen_vl as qwen; print(qwen.QwenVLImageProcessor.__name__)"
    assert "QwenVLImageProcessor" in run_python(code, SGLANG_USE_CPU_ENGINE="1").splitlines()


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
