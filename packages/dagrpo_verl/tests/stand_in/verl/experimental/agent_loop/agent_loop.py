"""Stand-in for verl's agent loops and the worker that runs them."""

import io
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from dagrpo.models.pictures import PictureProcessor

_LOOPS: dict[str, Any] = {}


class AgentLoopMetrics(SimpleNamespace):
    """Seconds of an attempt."""


class AgentLoopOutput(SimpleNamespace):
    """Sequence of an attempt."""


class AgentLoopBase:
    """Base with what a loop is given."""

    def __init__(self, config: Any, server_manager: Any) -> None:
        self.rollout_config, self.server_manager = config.actor_rollout_ref.rollout, server_manager


def register(name: str) -> Callable[[Any], Any]:
    """Register a loop by its name."""

    def registered(loop: Any) -> Any:
        _LOOPS[name] = loop
        return loop

    return registered


class AgentLoopWorker:
    """Worker that executes the file of function tools, and then runs loops by their names."""

    def __init__(self, config: Any, policy: Any) -> None:
        self._config, self._policy = config, policy
        if not _LOOPS:
            runpy.run_path(config.actor_rollout_ref.rollout.multi_turn.function_tool_path)

    async def _run_agent_loop(
        self, sampling: dict[str, Any], place: dict[str, Any], *, agent_name: str, trace: bool, **row: Any
    ) -> Any:
        loop = _LOOPS[agent_name](self._config, self._policy)
        return await self._agent_loop_postprocess(await loop.run(sampling, **row), place["validate"])

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **_: Any) -> Any:
        raise NotImplementedError

    def _compute_multi_modal_inputs(self, output: Any, input_ids: Any) -> dict[str, Any]:
        processor = PictureProcessor.of(Path(self._config.actor_rollout_ref.model.path))
        return {
            "image_grid_thw": torch.stack(
                [processor.pixels(_png(each)).grid for each in output.multi_modal_data["images"]]
            )
        }

    def _compute_position_ids(self, input_ids: Any, attention_mask: Any, inputs: Any) -> None:
        return None


def _png(picture: Any) -> bytes:
    picture.save(file := io.BytesIO(), "PNG")
    return file.getvalue()
