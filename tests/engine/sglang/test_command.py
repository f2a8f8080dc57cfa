"""The command and the environment of a server, and the model folders that none is started for."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.hostile import NOT_IN_THE_FOLDER

from dagrpo.core.errors import UserError
from dagrpo.engine import open_engine, sglang
from dagrpo.engine.errors import ServerError
from dagrpo.engine.servers import Part
from dagrpo.engine.sglang.command import (
    Kind,
    Serving,
    _further_flags,
    divided_environment,
    picture_environment,
    server_command,
    server_environment,
    shared_environment,
    write_settings,
)
from dagrpo.engine.sglang.server import SGLangServer, require_servable
from dagrpo.utils.files import write_json
from dagrpo.utils.machine import READ_BY_LIBRARIES

ENGINE = sglang.Config(tensor_parallel=2, max_total_tokens=2048, max_running_requests=7, request_timeout=900)
DEVICES: tuple[Kind, Kind] = ("cpu", "cuda")


def command(tmp_path: Path, *, device: Kind, engine: sglang.Config = ENGINE, **changes: Any) -> list[str]:
    pictures = changes.pop("pictures", False)
    serving = Serving(model=tmp_path, config=engine, **{"dtype": "bfloat16", "version": "v-1", **changes})
    return server_command(serving, 31000, tmp_path / "s.yaml", device=device, pictures=pictures)


def test_the_engine_parameters_reach_the_command_line(tmp_path: Path) -> None:
    line = " ".join(command(tmp_path, device="cpu"))
    for flag in (
        "--dtype bfloat16",
        "--weight-version v-1",
        "--max-total-tokens 2048",
        "--max-running-requests 7",
        "--tp-size 2",
        "--watchdog-timeout 900",
        "--host 127.0.0.1 --port 31000",
        f"--model-path {tmp_path}",
    ):
        assert flag in line


def test_the_parts_of_a_server_find_each_other_in_a_store_that_none_of_them_opens(tmp_path: Path) -> None:
    part = Part(number=1, of=3, store="10.0.0.1:29500")
    line = " ".join(command(tmp_path, device="cuda", part=part))
    assert "--tp-size 6" in line
    assert "--nnodes 3 --node-rank 1 --dist-init-addr 10.0.0.1:29500" in line
    environment = shared_environment(part)
    assert environment["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] == "tcp://10.0.0.1:29500"
    assert environment["TORCHELASTIC_USE_AGENT_STORE"] == "True"


def test_a_server_that_divides_its_model_starts_beside_a_policy_and_on_a_cpu_without_numa_nodes() -> None:
    assert divided_environment(1, device="cuda") == divided_environment(1, device="cpu") == {}
    assert divided_environment(2, device="cuda") == {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}
    cores = divided_environment(3, device="cpu")["SGLANG_CPU_OMP_THREADS_BIND"].split("|")
    assert cores == [f"0-{(os.cpu_count() or 1) - 1}"] * 3


LEAVING = {"engine": ENGINE.model_copy(update={"release_memory": True})}
PICTURED = {"--image-processor-backend=pil", "--mm-preprocess-cache-size-mb=1024"}
SEEDED, SAVER = "--enable-deterministic-inference", "--enable-memory-saver"


@pytest.mark.parametrize(
    ("device", "before", "changes", "added"),
    [
        *((device, {}, {"head_dtype": "float32"}, {"--enable-fp32-lm-head"}) for device in DEVICES),
        # Seeds are always honoured on a CPU, and on a GPU when asked.
        ("cpu", {"deterministic": False}, {"deterministic": True}, set()),
        ("cuda", {"deterministic": False}, {"deterministic": True}, {SEEDED}),
        # An attention that takes float32.
        ("cuda", {}, {"dtype": "float32"}, {"float32", "--attention-backend=triton"}),
        ("cuda", {"deterministic": False}, {"dtype": "float32"}, {"float32", "--attention-backend=triton"}),
        ("cuda", {}, LEAVING, {SAVER}),
        # No weight sync brings a classifier's weights back: it keeps them in host memory.
        ("cuda", {"classifies": True}, LEAVING, {SAVER, "--enable-weights-cpu-backup"}),
        ("cuda", {}, {"pictures": True}, PICTURED),
        ("cpu", {}, {"pictures": True}, PICTURED | {"--mm-attention-backend=sdpa", "--mem-fraction-static=0.5"}),
        # Graphs up to all requests that it runs.
        ("cuda", {"engine": sglang.Config(max_running_requests=8)}, {"engine": sglang.Config(max_running_requests=9)},
         {"9", "--cuda-graph-max-bs-decode=9"}),
    ],
)  # fmt: skip
def test_a_command_line_has_the_flags_that_its_settings_ask_for(
    tmp_path: Path, device: Kind, before: dict[str, Any], changes: dict[str, Any], added: set[str]
) -> None:
    assert {*command(tmp_path, device=device, **before | changes)} - {
        *command(tmp_path, device=device, **before)
    } == added
    assert ("--device=cpu" in command(tmp_path, device=device)) == (device == "cpu")


def test_a_server_that_is_to_leave_its_gpu_drops_settings_of_torch_s_allocator(tmp_path: Path) -> None:
    inherited = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "x", "HOME": "/home/me"}
    assert inherited.items() <= server_environment(inherited, tmp_path, device="cuda").items()
    dropped = server_environment(inherited, tmp_path, device="cuda", leaves=True)
    assert dropped["HOME"] == "/home/me"
    assert not inherited.keys() & dropped.keys() - {"HOME"}


def test_the_driver_that_the_user_put_on_the_library_path_stays_before_the_cuda_runtime(tmp_path: Path) -> None:
    inherited = {"LD_LIBRARY_PATH": "/usr/local/cuda/compat::/opt/lib"}
    environment = server_environment(inherited, tmp_path, "cuda", leaves=True)
    *named, last = environment["LD_LIBRARY_PATH"].split(":")
    assert named == ["/usr/local/cuda/compat", "/opt/lib"]
    assert last.endswith("nvidia/cu13/lib")
    assert server_environment(inherited, tmp_path, "cuda")["LD_LIBRARY_PATH"] == inherited["LD_LIBRARY_PATH"]


def test_what_a_vision_tower_made_is_kept_only_where_it_stays_right_and_changes_no_bits() -> None:
    kept = {"SGLANG_VLM_CACHE_SIZE_MB": "0"}
    together = {"SGLANG_ENABLE_COLOCATED_BATCH_GEN": "1"}
    assert picture_environment(deterministic=False, keep=True) == {}
    assert picture_environment(deterministic=False, keep=False) == kept
    assert picture_environment(deterministic=True, keep=False) == kept | together
    assert picture_environment(deterministic=True, keep=True) == kept | together


def test_the_environment_switches_the_cpu_path_on_without_a_gpu_only(tmp_path: Path) -> None:
    from sglang.srt.environ import envs

    assert hasattr(envs, "SGLANG_DIAG_BYPASS_HEALTH_GENERATE"), "else a health check samples a token"
    inherited = {"HOME": "/home/me", "PYTHONDONTWRITEBYTECODE": "1"} | dict.fromkeys(READ_BY_LIBRARIES, "8")
    cpu, gpu = (server_environment(inherited, tmp_path, device=device) for device in DEVICES)
    assert (cpu["SGLANG_USE_CPU_ENGINE"], "SGLANG_USE_CPU_ENGINE" in gpu) == ("1", False)
    assert {cpu[name] for name in READ_BY_LIBRARIES} == {"1"}, "a thread of theirs would forbid to fork"
    four = server_environment(inherited, tmp_path, "cpu", threads=4)
    assert {name for name, value in four.items() if cpu[name] != value} == {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
    kept = {name: int(value) for name, value in cpu.items() if name.startswith("MALLOC_")}
    assert kept["MALLOC_MMAP_THRESHOLD_"] < kept["MALLOC_TRIM_THRESHOLD_"], (
        "else memory that is freed is given back at once"
    )
    assert not any(name.startswith("MALLOC_") for name in gpu)
    assert gpu["OMP_NUM_THREADS"] == "8"
    for environment in (cpu, gpu):
        assert environment["HOME"] == "/home/me"
        assert environment["HF_HUB_OFFLINE"] == "1"
        assert environment["SGLANG_DIAG_BYPASS_HEALTH_GENERATE"] == "1"
        assert "PYTHONDONTWRITEBYTECODE" not in environment


def sglang_flags() -> dict[str, Any]:
    """The flags of SGLang's own parser, which takes the lines that `parse` makes."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return {name: action for action in parser._actions for name in action.option_strings} | {"parse": parser.parse_args}


def test_further_flags_of_sglang_come_last_are_of_its_own_parser_and_any_other_is_refused() -> None:
    actions = sglang_flags()
    for name, kind in sglang.ARGUMENTS.items():
        assert (actions[f"--{name}"].nargs == 0) == (kind is bool), name
    values = {bool: True, int: 3, float: 0.5}
    arguments = {
        name: values.get(kind, "lru" if name == "radix-eviction-policy" else "info")
        for name, kind in sglang.ARGUMENTS.items()
    }
    arguments |= dict.fromkeys(("watchdog-timeout", "soft-watchdog-timeout"), 4)
    config = sglang.Config.model_validate({"arguments": arguments | {"enable-mscclpp": False}})
    line = [*_further_flags(config.arguments)]
    assert "--enable-mscclpp" not in line
    assert len(line) == len(arguments) - 1
    actions["parse"](["--model-path", "m", *line])
    for name in {each.removeprefix("--") for each in actions} - {*sglang.ARGUMENTS}:
        with pytest.raises(ValueError, match="Remove it"):
            sglang.Config.model_validate({"arguments": {name: True}})
    mistyped = (("mem-fraction-static", "much"), ("mem-fraction-static", True), ("max-prefill-tokens", True))
    for name, value in (*mistyped, ("disable-radix-cache", 1)):
        with pytest.raises(ValueError, match="SGLang reads a"):
            sglang.Config.model_validate({"arguments": {name: value}})


def test_a_server_meets_its_own_processes_in_a_private_file_and_over_loopback_whatever_the_host_says(
    tmp_path: Path,
) -> None:
    inherited = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0", "MASTER_ADDR": "10.0.0.1"}
    for device in DEVICES:
        environment = server_environment(inherited, tmp_path, device=device)
        assert environment["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] == f"file://{tmp_path}/rendezvous"
        assert environment["GLOO_SOCKET_IFNAME"] == environment["NCCL_SOCKET_IFNAME"] == "lo"
        assert "MASTER_ADDR" not in environment


def test_the_api_key_stands_in_files_that_only_the_user_may_read(tmp_path: Path) -> None:
    settings = write_settings(tmp_path, "secret")
    assert json.loads(settings.read_text()) == {"api-key": "secret"}
    logging = Path(server_environment({}, tmp_path, device="cuda")["SGLANG_LOGGING_CONFIG_PATH"])
    assert {*tmp_path.iterdir()} == {settings, logging}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())


LOGS = """
import json, logging, logging.config, os
logging.config.dictConfig(json.load(open(os.environ["SGLANG_LOGGING_CONFIG_PATH"])))
logging.getLogger("sglang").info("server_args={'api_key': 'k3y', 'port': 1} %s", os.environ["HF_TOKEN"])
"""


def test_what_sglang_logs_of_its_settings_is_without_the_api_key(tmp_path: Path) -> None:
    write_settings(tmp_path, "k3y")
    environment = server_environment(os.environ | {"HF_TOKEN": "m4rked-s3cret"}, tmp_path, device="cuda")
    done = subprocess.run([sys.executable, "-c", LOGS], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.rstrip().endswith("] server_args={'api_key': '***', 'port': 1} ***")


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("config.json", "config.json"),
        ("tokenizer.json", "tokenizer"),
        ("model.safetensors", "weights"),
    ],
)
def test_an_incomplete_model_folder_is_refused_before_anything_starts(
    tiny_model: Path, tmp_path: Path, missing: str, named: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / missing).unlink()
    with (
        pytest.raises(ServerError, match=f"{model} cannot be served, it has no {named}.*: run the stage"),
        open_engine(model, sglang.Config(), tmp_path / "server.log", dtype="float32", deterministic=True),
    ):
        pass
    assert not (tmp_path / "server.log").exists()


@pytest.mark.parametrize("name", NOT_IN_THE_FOLDER, ids=lambda name: repr(name)[:20])
def test_an_index_that_names_other_peoples_files_is_refused_before_anything_starts(
    tiny_model: Path, tmp_path: Path, name: object
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    index = json.dumps({"weight_map": {"w": "model.safetensors", "v": name}})
    (model / "model.safetensors.index.json").write_text(index)
    with (
        pytest.raises(UserError, match="which is not a safetensors file of its folder"),
        SGLangServer(model, sglang.Config(), tmp_path / "server.log"),
    ):
        pass
    assert not (tmp_path / "server.log").exists()


def test_more_ranks_than_can_divide_a_model_are_refused_with_those_that_can(tiny_model: Path, tmp_path: Path) -> None:
    require_servable(tiny_model, 4)
    with pytest.raises(UserError, match=r"tensor_parallel is 8, which cannot divide 4 .* set it to one of 1, 2, 4$"):
        require_servable(tiny_model, 8)
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    experts = {"num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 64, "moe_intermediate_size": 6}
    write_json(model / "config.json", experts)
    with pytest.raises(UserError, match=r"4 key-value heads and an MLP of 2: set it to one of 1, 2$"):
        require_servable(model, 4)
    write_json(model / "config.json", experts | {"vision_config": {"patch_size": 14}})
    write_json(model / "preprocessor_config.json", {})
    with pytest.raises(ServerError, match="tensor_parallel is 2, but a vision tower over several GPUs was never tried"):
        require_servable(model, 2)
