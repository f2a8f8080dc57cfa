"""Engine that completes by a script in this process: the second member of the registry, without SGLang's abilities."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field
from tests.trainer.runs import ScriptedEngine

from dagrpo.core.errors import UserError
from dagrpo.engine import Capabilities, Engine
from dagrpo.engine.config import EngineConfig

NAME = f"{__name__}:ENGINE"
STARTABLE = f"{__name__}:STARTABLE_ENGINE"
ABORTING = f"{__name__}:ABORTING_ENGINE"


class Config(EngineConfig):
    """Scripted completions."""

    notebook: str | None = Field(None, description="File that gets a line for each call.")


def check(config: Config, section: str, model: Any, deterministic: bool) -> None:
    """Raise UserError for several servers, of which there is none."""
    if config.replicas > 1:
        raise UserError(
            f"{section}.replicas is {config.replicas}, and the scripted engine runs in this process: set it to 1"
        )


@contextmanager
def _open(
    model: Path, config: Config, log: Path, *, weights: Any = None, version: str = "initial", **_: Any
) -> Iterator[Any]:
    calls: list[str] = []
    engine = ScriptedEngine(model, calls)
    engine.load(weights, version)
    yield engine
    if config.notebook is not None:
        Path(config.notebook).write_text("\n".join(calls))


ENGINE = Engine(
    config=Config,
    capabilities=Capabilities(bit_exact=True, sampling_mask=8, scores=True, weight_digest=True),
    open=_open,
    check=check,
)


def _start(*_: Any, **__: Any) -> Any:
    raise NotImplementedError


STARTABLE_ENGINE = replace(ENGINE, start=_start)  # has servers for other nodes, each on one node alone
ABORTING_ENGINE = replace(
    ENGINE, capabilities=replace(ENGINE.capabilities, aborts=True)
)  # and forgets what it had sampled
