"""What SGLang's own parser and resolution make of the command lines of servers on GPUs, which are made up."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2_5_VLConfig, Qwen2Config

from dagrpo.core.section import HeadDtype
from dagrpo.engine import sglang
from dagrpo.engine.interface import AdapterForm
from dagrpo.engine.servers import Part
from dagrpo.engine.sglang.command import Serving, server_command, write_settings
from dagrpo.utils.gpu_specs import gpu_named

# The types that a backend's kernels take: fa3 by the check in sgl_kernel's flash_ops ("only supports fp16, bf16, and fp8_e4m3"),
# flashinfer by the table in its jit/utils.py, triton by its compiler, which takes every type of a model.
TAKES = {
    "fa3": {"bfloat16", "float16"},
    "flashinfer": {"bfloat16", "float16"},
    "triton": {"bfloat16", "float16", "float32"},
}
CAPABILITIES = {"H100": (9, 0), "H200": (9, 0), "A100": (8, 0), "RTX 4090": (8, 9), "L40S": (8, 9)}
ADAPTER = AdapterForm(rank=16, alpha=32, target_modules=("q_proj", "v_proj"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A server, and the card that it starts on."""

    card: str
    dtype: str
    deterministic: bool
    pictures: bool = False
    adapter: bool = False
    release_memory: bool = False
    tensor_parallel: int = 1
    machines: int = 1
    head_dtype: HeadDtype = None

    def to_resolve(self, folder: Path) -> dict[str, Any]:
        """Return what `resolved.py` reads."""
        model, kind = folder / "model", Qwen2_5_VLConfig if self.pictures else Qwen2Config
        architecture = "Qwen2_5_VLForConditionalGeneration" if self.pictures else "Qwen2ForCausalLM"
        kind(architectures=[architecture], dtype="bfloat16").save_pretrained(model)
        serving = Serving(
            model=model,
            config=sglang.Config(release_memory=self.release_memory, tensor_parallel=self.tensor_parallel),
            dtype=self.dtype,
            head_dtype=self.head_dtype,
            deterministic=self.deterministic,
            adapter=ADAPTER if self.adapter else None,
            part=None if self.machines == 1 else Part(number=1, of=self.machines, store="10.0.0.1:29500"),
        )
        settings = write_settings(folder, "0" * 64)
        command = server_command(serving, 30_000, settings, device="cuda", pictures=self.pictures)
        gpu = gpu_named(self.card)
        return {
            "command": command,
            "capability": CAPABILITIES[self.card],
            "mebibytes": gpu.mebibytes,
            "name": f"NVIDIA {gpu.name}",
        }


EACH_KIND = [
    Case(card="H100", dtype="float32", deterministic=True),  # as shipped
    Case(card="A100", dtype="float32", deterministic=False),
    Case(card="H100", dtype="bfloat16", deterministic=False, adapter=True),
    Case(card="H200", dtype="bfloat16", deterministic=True, pictures=True, release_memory=True),
    Case(card="RTX 4090", dtype="bfloat16", deterministic=False, head_dtype="float32"),
    Case(card="L40S", dtype="float16", deterministic=True),
    Case(card="H100", dtype="bfloat16", deterministic=True, tensor_parallel=2),
    Case(card="RTX 4090", dtype="bfloat16", deterministic=False, tensor_parallel=2),
    Case(card="H100", dtype="bfloat16", deterministic=True, tensor_parallel=8, machines=2),
]


@pytest.mark.nightly
def test_sglang_resolves_every_command_line_to_an_attention_that_takes_its_type(tmp_path: Path) -> None:
    asked = [case.to_resolve(tmp_path / str(number)) for number, case in enumerate(EACH_KIND)]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("resolved.py"))],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for case, decided in zip(EACH_KIND, json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert "refused" not in decided, (case, decided)
        assert case.dtype in TAKES[decided["attention_backend"]], (case, decided)
        assert decided["enable_deterministic_inference"] is case.deterministic
        assert decided["enable_memory_saver"] is case.release_memory
        assert decided["enable_fp32_lm_head"] is (case.head_dtype == "float32")
        assert (decided["max_total_tokens"], decided["max_running_requests"]) == (65_536, 256), case
        assert 0.5 < decided["mem_fraction_static"] < 0.95, (case, decided)
        assert decided["largest_graph"] == 256, (case, decided)
        assert decided["tp_size"] == case.tensor_parallel * case.machines
        if case.deterministic:
            assert decided["sampling_backend"] == "pytorch", case  # flashinfer's ignores seeds
        if case.deterministic and case.tensor_parallel > 1:  # what depends on how many tokens are added up at once
            assert decided["disable_custom_all_reduce"], case
            assert not decided["enable_torch_symm_mem"], case
            assert decided["NCCL_ALGO"] == "allreduce:tree", case
            assert decided["NCCL_MIN_NCHANNELS"] == decided["NCCL_MAX_NCHANNELS"], case
