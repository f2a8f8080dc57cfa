"""Registry of trainer backends: implementations of the stage train, by files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from dagrpo.core.errors import UserError
from dagrpo.core.plugin_sections import Choice
from dagrpo.core.plugins import Plugins

if TYPE_CHECKING:
    from dagrpo.algorithms.config import Algorithm
    from dagrpo.core.experiment import Experiment
    from dagrpo.models.config import Model
    from dagrpo.rewards.config import Reward
    from dagrpo.rollout.config import Rollout
    from dagrpo.trainer.config.runtime import Runtime
    from dagrpo.trainer.config.training import Training

ConfigType = TypeVar("ConfigType", bound=Choice)
Config = TypeVar("Config", bound=Choice, contravariant=True)


class Train(Protocol[Config]):
    """Training from files to files."""

    def __call__(
        self,
        run: Any,
        config: Config,
        *,
        threads: int,
        report: Callable[..., None],
        report_held_out: Callable[..., None],
    ) -> None:
        """Train to the last step and write the outputs of `run`.

        `run`, a TrainingRun, names the inputs (train.parquet, initial checkpoint, passages, teacher), the parameters, a folder for
        resumable state, and the outputs: the trained checkpoint in the format of the initial one, metrics, rollouts and held-out answers.
        `report(step, metrics)` takes the metrics of each step from 1, also of those that an earlier execution has finished;
        `report_held_out` takes accuracies on held-out problems. `threads`: of each process. Raises UserError for what the
        user can correct; the stage is started again after any other exception.
        """
        ...


@dataclass(frozen=True, slots=True)
class Planned:
    """Sections that decide a training, before any file is there."""

    experiment: Experiment
    model: Model
    rollout: Rollout
    reward: Reward
    algorithm: Algorithm
    training: Training
    runtime: Runtime


def _takes_any(config: Any, params: Planned) -> None:
    """Accept all parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend(Generic[ConfigType]):
    """Trainer backend. Its module is imported whenever parameters are read, so that `train` imports what it needs itself."""

    config: type[ConfigType]  # its keys in training.backend
    train: Train[ConfigType]
    check: Callable[[ConfigType, Planned], None] = _takes_any  # raises UserError for parameters that it cannot honour
    launches_processes: bool = True  # False: the stage calls `train` in each of runtime.training.processes processes
    keeps_policies: bool = False  # it writes those of training.keep_policies
    takes_nodes: bool = False  # if it launches its processes: `train` is called in a process on each of runtime.nodes


BACKENDS: Plugins[Backend[Any]] = Plugins(
    what="trainer backend",
    package="dagrpo.trainer.backends",
    attribute="BACKEND",
    group="dagrpo.trainer_backends",
    key="training.backend.name",
    kind=Backend,
    packaged={"verl": "dagrpo[verl]", "megatron_lm": "dagrpo[megatron]"},
)


def check_backend(params: Planned) -> None:
    """Raise UserError if training.backend cannot work with the other parameters."""
    config, nodes, engines = params.training.backend, params.runtime.nodes, params.runtime.engine.nodes
    backend = BACKENDS.get(config.name)
    if nodes > 1 and backend.launches_processes and not backend.takes_nodes:
        raise UserError(
            f"runtime.nodes is {nodes}, but training.backend {config.name} starts its processes on one machine: set runtime.nodes to 1"
        )
    if engines and backend.launches_processes:
        raise UserError(
            f"runtime.engine.nodes is {engines}, but training.backend {config.name} samples with the GPUs that train: set "
            "runtime.engine.nodes to 0"
        )
    if params.training.keep_policies is not None and not backend.keeps_policies:
        raise UserError(
            f"training.keep_policies is set, but training.backend {config.name} hands over its last policy alone: set "
            "training.keep_policies to null, or train with training.backend: {name: fsdp}"
        )
    backend.check(config, params)
