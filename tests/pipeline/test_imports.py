"""A stage pays for no import that its work does not use: each is seconds of processor time, in every stage of every run."""

import subprocess
import sys

import pytest

STEP_BY_STEP = """
import sys
from importlib.util import find_spec

def imported(*names):
    return [name for name in names if name in sys.modules]

import dagrpo.evaluation.pass_rates
assert not imported("torch", "transformers"), "a split that is not rated"
import dagrpo.evaluation.sampling
assert not imported("transformers.modeling_utils", "scipy", "sklearn"), "a stage whose model is in the server"
import dagrpo.checkpoints.modules, transformers
transformers.Qwen2ForCausalLM
assert imported("transformers.modeling_utils")
assert not imported("sklearn", "scipy.optimize"), "a stage that computes with a model"
assert find_spec("sklearn") and find_spec("scipy"), "they are there for whoever else wants them"
"""


@pytest.mark.nightly
def test_stages_import_neither_models_nor_what_models_do_not_use() -> None:
    done = subprocess.run([sys.executable, "-c", STEP_BY_STEP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


LIGHT = ("torch", "transformers", "pandas", "datasets", "mlflow", "sglang")


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("dagrpo.cli.application", LIGHT),
        ("dagrpo.pipeline.snakemake.workflow", LIGHT),
        pytest.param("dagrpo.models.fresh", ("sklearn", "scipy", "pandas"), marks=pytest.mark.nightly),
    ],
)
def test_what_starts_often_imports_nothing_that_only_some_of_its_work_computes_with(
    module: str, heavy: tuple[str, ...]
) -> None:
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
