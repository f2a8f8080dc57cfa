"""docs/algorithms.md: its example is a loss as it stands, and its objectives are valid."""

import re
import sys
from pathlib import Path

import pytest
import torch
import yaml

from dagrpo.algorithms import losses
from dagrpo.algorithms.losses import loss_of
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.config.overlay import merged
from dagrpo.config.schema import Params, parse

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs/algorithms.md").read_text()


@pytest.fixture
def _with_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's file where losses are looked for, as if it stood in the package."""
    block, *_ = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    (tmp_path / "tilted.py").write_text(block)
    monkeypatch.setattr(losses, "__path__", [*losses.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"{losses.__name__}.tilted", raising=False)


@pytest.mark.usefixtures("_with_the_example")
def test_one_file_is_a_whole_loss_with_parameters_of_its_own() -> None:
    config = parse({"algorithm": {"loss": {"name": "tilted", "power": 2.0}}}).algorithm.loss
    zeros = torch.zeros(1)
    batch = TokenBatch(
        logprobs=torch.tensor([-2.0]),
        old_logprobs=zeros,
        rollout_logprobs=zeros,
        reference_logprobs=None,
        entropy=zeros,
        advantages=torch.tensor([-3.0]),
        positive=torch.tensor([False]),
        sequence=torch.tensor([0]),
        sequences=1,
    )
    assert loss_of(batch, config).per_token.tolist() == [-18.0]


OBJECTIVES = dict(re.findall(r"^\| ([^|]+?) \| `(\{.*\})` \|$", DOCUMENT, re.MULTILINE))


@pytest.mark.parametrize("values", OBJECTIVES.values(), ids=OBJECTIVES.keys())
def test_every_published_objective_is_valid(values: str) -> None:
    parse(merged(Params().model_dump(), {"algorithm": yaml.safe_load(values)}))
