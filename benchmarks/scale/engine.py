"""The plug-in of long_answers.py: parsing params.yaml imports this module alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagrpo.engine import Capabilities, Engine
from dagrpo.engine.config import EngineConfig

if TYPE_CHECKING:
    from benchmarks.scale.long_answers import LongAnswers

NAME = f"{__name__}:ENGINE"


class Config(EngineConfig):
    """Made-up answers."""


@contextmanager
def _open(
    model: Path, config: Config, log: Path, *, weights: Any = None, version: str = "initial", **_: Any
) -> "Iterator[LongAnswers]":
    from benchmarks.scale.long_answers import LongAnswers, formula

    from dagrpo.checkpoints.source import open_tensors
    from dagrpo.trainer.model.policy import Policy

    engine, forward = LongAnswers(model, log), Policy.forward
    Policy.forward = formula  # type: ignore[method-assign, assignment]
    try:
        engine.load(open_tensors(model) if weights is None else weights, version)
        yield engine
    finally:
        Policy.forward = forward  # type: ignore[method-assign]


ENGINE = Engine(
    config=Config, capabilities=Capabilities(bit_exact=True, scores=True, aborts=True, weight_digest=True), open=_open
)
