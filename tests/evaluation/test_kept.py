"""Policies of chosen steps: which are evaluated, what is refused, and how an engine gets their weights."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.evaluation.test_sampling import SHAPE, attempts_of
from tests.rollout.scripted_engine import ScriptedEngine

from dagrpo.checkpoints.kept import write
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tensors import Tensors
from dagrpo.config.schema import parse
from dagrpo.core.errors import UserError
from dagrpo.evaluation import sampling
from dagrpo.evaluation.kept import opened_kept
from dagrpo.models.fresh import make_fresh


@pytest.mark.parametrize(
    ("policies", "steps", "names"),
    [
        (["base", "trained"], [], ["base", "trained"]),
        (["step_40", "trained", "base", "step_20"], [20, 40], ["base", "step_20", "step_40", "trained"]),
        ({"every": 40}, [40, 80], ["base", "step_40", "step_80", "trained"]),
    ],
)
def test_base_comes_first_then_the_kept_steps_then_trained(policies: Any, steps: list[int], names: list[str]) -> None:
    params = parse({"training": {"steps": 120, "keep_policies": {"every": 20}}, "evaluation": {"policies": policies}})
    assert params.evaluation.steps(params.training) == steps
    assert params.evaluation.policy_names(params.training) == names


@pytest.mark.parametrize(
    ("policies", "sentence"),
    [
        (["base", "trained", "step_60"], r"asks for step 60.* training\.keep_policies \(20, 40\): keep it there"),
        ({"every": 10}, r"asks for step 10, .*training\.keep_policies"),
        (["trained", "step_20"], "name base and trained"),
        (["base", "trained", "step_20", "step_20"], "each policy once"),
        (["base", "trained", "step_020"], r"`evaluation\.policies\.2` is 'step_020': write base, trained, or step_"),
        (["base", "trained", "step_50"], r"names step_50, .* is `trained`: leave it out"),
        ({"every": 50}, r"every 50 steps, .* training\.steps is 50"),
        ({"step": 10}, r"unknown key `evaluation\.policies\.step`: write 'every'"),
        (["base", "trained", 20], r"`evaluation\.policies\.2` is 20: input should be a valid string"),
        ({"every": 0}, r"`evaluation\.policies\.every` is 0"),
        ({}, r"`evaluation\.policies`"),
        ("base", r"`evaluation\.policies` is 'base': write a list"),
    ],
)
def test_a_policy_that_is_not_kept_is_refused_before_anything_runs(policies: Any, sentence: str) -> None:
    values = {"training": {"steps": 50, "keep_policies": [40, 20]}, "evaluation": {"policies": policies}}
    with pytest.raises(UserError, match=sentence):
        parse(values)


def test_a_step_that_patience_may_not_reach_is_evaluated_no_more_than_chosen() -> None:
    training = {"steps": 50, "keep_policies": [20], "patience": 2, "evaluate_every": 5}
    assert parse({"training": training}).training.patience == 2
    for policies in (["base", "trained", "step_20"], {"every": 20}):
        with pytest.raises(UserError, match=r"evaluation\.policies .* training\.patience may end"):
            parse({"training": training | {"keep_policies": [20, 40]}, "evaluation": {"policies": policies}})


@dataclass(frozen=True, slots=True)
class _Held:
    differs: bool
    ranks: tuple[Mapping[str, str], ...] = ({},)

    def comparable(self, weights: Tensors) -> dict[str, tuple[str, ...]]:
        return {"a": ("lm_head.weight",)}

    def differing(self, parts: Mapping[str, tuple[str, ...]], weights: Tensors) -> list[str]:
        return [*parts] if self.differs else []


class _Engine(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[tuple[str, torch.dtype]] = []
        self.differs = False

    def load(self, weights: Tensors, version: str) -> None:
        self.loaded.append((version, weights.specs["model.embed_tokens.weight"].dtype))

    def digests(self) -> list[Any]:
        return [_Held(self.differs)]


def test_a_policy_is_loaded_once_for_all_tasks_in_the_type_of_the_engine_and_must_be_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, opened = _Engine(), list[dict[str, Any]]()

    def start(*_: object, **options: Any) -> AbstractContextManager[_Engine]:
        opened.append(options)
        return nullcontext(engine)

    monkeypatch.setattr(sampling, "open_engine", start)
    digests = []
    for step in (0, 1, 2, 3):
        made = make_fresh(tmp_path / str(step), SHAPE.model_copy(update={"seed": step}), torch.float32)
        digests.append(made.tensors.digest[:12])
        if step in (1, 2):
            write(tmp_path / "kept", tmp_path / "0", step, open_tensors(tmp_path / str(step)))
    attempts = replace(attempts_of(tmp_path / "0", tmp_path), dtype="bfloat16")
    with opened_kept(attempts, tmp_path / "kept", tmp_path / "0", tmp_path / "3") as checkpoint_of:
        assert not opened
        for policy in ("step_1", "step_1", "step_2", "trained"):
            assert checkpoint_of(policy).engine() is engine
        assert engine.loaded == [(digest, torch.bfloat16) for digest in digests[1:]]
        engine.differs = True
        with pytest.raises(UserError, match="server 0 holds other weights than those of step_1: 1 tensors"):
            checkpoint_of("step_1").engine()
    assert [options["keep_pictures"] for options in opened] == [False]
