"""docs/algorithms.md: its table has every plug-in, and its example is a loss as it stands."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dagrpo.algorithms import losses
from dagrpo.algorithms.advantages import ADVANTAGES
from dagrpo.algorithms.corrections import CORRECTIONS
from dagrpo.algorithms.losses import LOSSES, loss_of
from dagrpo.algorithms.terms import TERMS
from dagrpo.algorithms.tokens import TokenBatch
from dagrpo.config.overlay import merged
from dagrpo.config.schema import Params, parse
from dagrpo.core.plugins import Plugins

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


def _table(kind: str) -> list[list[str]]:
    """The cells of the document's table whose first column is called so, row by row, without its header."""
    (rows,) = re.findall(rf"^\| {kind} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", DOCUMENT, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows.splitlines()]


@pytest.mark.parametrize(
    ("kind", "plugins"), [("loss", LOSSES), ("advantage", ADVANTAGES), ("correction", CORRECTIONS), ("term", TERMS)]
)
def test_every_plug_in_of_the_objective_has_its_formula(kind: str, plugins: Plugins[Any]) -> None:
    """In the table of its own kind: there is a loss and an advantage that are called gpg."""
    assert sorted(row[0] for row in _table(kind)) == plugins.own_names()


OBJECTIVES = {name: values.strip("`") for name, values in _table("objective")}


@pytest.mark.parametrize("values", OBJECTIVES.values(), ids=OBJECTIVES.keys())
def test_every_published_objective_is_valid(values: str) -> None:
    parse(merged(Params().model_dump(), {"algorithm": yaml.safe_load(values)}))
