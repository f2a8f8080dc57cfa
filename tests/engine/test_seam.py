"""A second engine works by its name alone, and what it cannot do is refused before any work."""

from pathlib import Path
from typing import Any

import pytest
from tests.engine.scripted_plugin import ABORTING, NAME, STARTABLE, Config
from tests.trainer import runs

from dagrpo.config.schema import parse
from dagrpo.config.selection import selected_modules
from dagrpo.core.errors import UserError
from dagrpo.engine import ENGINES
from dagrpo.trainer.run import TrainingRun
from dagrpo.trainer.training import train
from dagrpo.utils.distributed import single_process
from dagrpo.utils.tables import read_parquet


def _with(engine: dict[str, Any], **sections: Any) -> dict[str, Any]:
    return {**sections, "runtime": {"engine": {"name": NAME, **engine}}}


def test_a_second_engine_trains_a_step_by_its_name_in_the_parameters(tmp_path: Path) -> None:
    params = parse(_with({"notebook": str(tmp_path / "calls")}))
    run = runs.training_run(runs.make_inputs(tmp_path), tmp_path / "state", tmp_path, steps=2)
    run = TrainingRun(**{name: getattr(run, name) for name in run.__slots__} | {"runtime": params.runtime})
    train(run, lambda step, metrics: None, single_process())
    assert (tmp_path / "calls").read_text().split("\n") == ["load step_0", "generate", "load step_1", "generate"]
    rollouts = read_parquet(run.rollouts.with_name("step_00002.parquet"))
    assert set(rollouts["weight_version"].to_pylist()) == {"step_1"}
    assert max(read_parquet(run.metrics)["policy/logprob_difference_max"].to_pylist()) < 1e-4


def test_an_engine_is_named_by_a_folder_and_its_module_is_code_of_the_stages_that_sample() -> None:
    assert ENGINES.own_names() == ["sglang"]
    assert selected_modules(parse({}), ())["engine"] == [
        "dagrpo.engine.sglang",
        "dagrpo_sglang_adapters.*",
        "dagrpo_sglang_cpu.*",
    ]
    assert selected_modules(parse(_with({})), ())["engine"] == ["tests.engine.scripted_plugin"]


def test_an_engine_without_a_name_is_sglang_and_its_own_keys_are_closed() -> None:
    assert parse({"runtime": {"engine": {"threads": 2}}}).runtime.engine.name == "sglang"
    assert isinstance(parse(_with({"notebook": "calls"})).runtime.engine, Config)
    with pytest.raises(UserError, match=r"unknown key `runtime\.engine\.attention_backend`"):
        parse(_with({"attention_backend": "triton"}))
    with pytest.raises(UserError, match=r"`sgland` is not an engine: the nearest known one is `sglang`"):
        parse({"runtime": {"engine": {"name": "sgland"}}})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (_with({"release_memory": True}), "runtime.engine.release_memory is true, which the engine"),
        (_with({"weight_sync": "tensors"}), "runtime.engine.weight_sync is tensors, which the engine"),
        (_with({"tensor_parallel": 2}), "runtime.engine.tensor_parallel is 2, which the engine"),
        (_with({"nodes": 2}), "runtime.engine.nodes is 2, which the engine"),
        (
            _with({"name": STARTABLE, "nodes": 2, "nodes_per_server": 2}),
            "runtime.engine.nodes_per_server is 2, which the engine",
        ),
        (_with({"servers": ["http://127.0.0.1:1"]}), "runtime.engine.servers names servers that run elsewhere, which"),
        (_with({"replicas": 2}), "the scripted engine runs in this process: set it to 1"),
        (_with({}, rollout={"top_k": 9}), "sampling masks of at most 8 tokens: set rollout.top_p to 1.0"),
        (_with({}, rollout={"head_dtype": "float32"}), "computes logits in the model's type: set it to null"),
        (_with({}, training={"lora": {"rank": 4, "serving": "adapter"}}), "serves no adapter: set it to merged"),
        (
            _with({}, rollout={"deterministic": False}, training={"dynamic_sampling": {"max_aborts": 1, "oversampling": 2.0}}),
            "the engine aborts no requests: set it to 0",
        ),
        (
            _with({"name": ABORTING}, rollout={"deterministic": False}, training={
                "dynamic_sampling": {"max_aborts": 1, "oversampling": 2.0, "partial_rollouts": True}
            }),
            "the engine does not return what it had sampled for aborted requests: set it to false",
        ),
        (_with({}, model={"fresh": {"vision": {"family": "qwen3_vl"}}}), "the engine takes text alone: set it to none"),
    ],
)  # fmt: skip
def test_parameters_that_need_what_an_engine_cannot_do_are_refused_with_the_remedy(
    values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as refused:
        parse(values)
    assert sentence in str(refused.value)
