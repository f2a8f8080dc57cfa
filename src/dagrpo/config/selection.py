"""Plug-ins that an experiment selects, by kind.

The import closure of each stage's code starts there; pipeline/identity.py computes it, and a stage declares the kinds that it runs.
"""

from collections.abc import Collection

from dagrpo.algorithms.advantages import ADVANTAGES
from dagrpo.algorithms.corrections import CORRECTIONS
from dagrpo.algorithms.losses import LOSSES
from dagrpo.algorithms.terms import TERMS, computed
from dagrpo.chat.renderers import CHATS
from dagrpo.chat.tool_calls.families import CALLS
from dagrpo.checkpoints.formats import FORMATS
from dagrpo.config.schema import Params
from dagrpo.core.user_code import NamedCode
from dagrpo.data.task import TASKS, get_task
from dagrpo.engine import ENGINES
from dagrpo.rewards.components import COMPONENTS
from dagrpo.rewards.verifiers import SCORERS, VERIFIERS
from dagrpo.rollout.agents import AGENTS
from dagrpo.tools import TOOLS, config_for
from dagrpo.tools.simulated_users import INTERACTIONS
from dagrpo.trainer.backends import BACKENDS

MODEL_FORMAT = "huggingface"  # of models/, sft/ and exported/: convert reads it, export writes it


def selected_modules(params: Params, tasks: Collection[str]) -> dict[str, list[str]]:
    """Return the dotted modules by kind, such as task or loss, each sorted and without repeats, where these tasks are used.

    `format` is the trainer's, `model_format` that of every checkpoint outside training, whatever the parameters say.
    Verifiers are those of the tasks and of reward.verifier. A component without a weight is not computed, and left out.
    `fresh_tool` are the tools whose calls the tokenizer of a fresh model spells.
    """
    verifiers = {get_task(name).verifier for name in tasks} | {params.reward.verifier} - {"task"}
    tools = {tool for name in tasks for tool in get_task(name).tools}
    users = {get_task(name).interaction for name in tasks} - {""}
    components = [name for name, config in params.reward.components.items() if config.counts]
    return {
        "task": sorted({TASKS.module_of(name) for name in tasks}),
        "verifier": sorted({VERIFIERS.module_of(name) for name in verifiers}),
        "scorer": sorted({SCORERS.module_of(name) for name in params.evaluation.scoring.also}),
        "component": sorted({COMPONENTS.module_of(name) for name in components}),
        "advantage": [ADVANTAGES.module_of(params.algorithm.advantage.name)],
        "format": [FORMATS.module_of(params.checkpoint.format)],
        "model_format": [FORMATS.module_of(MODEL_FORMAT)],
        "agent": [AGENTS.module_of(params.rollout.agent.name)],
        "chat": sorted({CHATS.module_of(params.rollout.chat.name), *_call_syntax(params)}),
        "tool": sorted({TOOLS.module_of(name) for name in tools}),
        "interaction": sorted({INTERACTIONS.module_of(name) for name in users}),
        "fresh_tool": sorted({TOOLS.module_of(name) for name in params.model.fresh.tools}),
        "engine": _engine(params.runtime.engine.name),
        "teacher_engine": _engine(params.runtime.teacher.name) if params.algorithm.teacher.is_there else [],
        "reward_engine": _engine(params.runtime.reward_model.name) if "reward_model" in components else [],
        "loss": [LOSSES.module_of(params.algorithm.loss.name)],
        "correction": [CORRECTIONS.module_of(params.algorithm.correction.name)],
        "backend": [BACKENDS.module_of(params.training.backend.name)],
        "term": sorted({TERMS.module_of(name) for name in computed(params.algorithm.terms)}),
    }


def named_code(params: Params, tasks: Collection[str]) -> dict[str, list[NamedCode]]:
    """Return the user's own code by the kind of plug-in whose parameters name it: of the agent, and of the tools of these tasks."""
    agent, tools = params.rollout.agent, {tool for name in tasks for tool in get_task(name).tools}
    configs = {name: config_for(name, params.rollout.tools) for name in sorted(tools)}
    return {
        "agent": [AGENTS.get(agent.name).code(agent)],
        "tool": [TOOLS.get(name).code(config) for name, config in configs.items()],
    }


def _engine(name: str) -> list[str]:
    """Return an engine's module, and the packages that its server imports by itself."""
    return [ENGINES.module_of(name), *(f"{package}.*" for package in ENGINES.get(name).own_packages)]


def _call_syntax(params: Params) -> list[str]:
    """Return the module of the call syntax, if the chat format leaves the choice."""
    calls = getattr(params.rollout.chat, "calls", None)
    return [] if calls is None else [CALLS.module_of(calls)]
