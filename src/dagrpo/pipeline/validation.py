"""Validation of parameters against the selected tasks, before any work."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from dagrpo.chat.renderers import CHATS
from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import UserError
from dagrpo.core.escape import MOST_MISTAKES, sentence, sentences
from dagrpo.core.plugin_sections import LONGEST_NAME
from dagrpo.data.task import TASKS, get_task
from dagrpo.engine import capabilities_of
from dagrpo.rewards.components import COMPONENTS
from dagrpo.rewards.verifiers import SCORERS, get_verifier
from dagrpo.rollout.agents import AGENTS, OWN_LOOP
from dagrpo.tools import TOOLS, config_for


def parse_with_tasks(values: Mapping[str, Any], source: str = "params.yaml") -> Params:
    """Parse parameters whose tasks are known and fit. Raises UserError with every mistake that can be found at once."""
    unknown = {name: str(mistake) for name in _names(values) if (mistake := _raised_by(get_task, name)) is not None}
    messages = [f"{source}: {mistake}" for mistake in unknown.values()]
    try:
        params = parse(_as_meant(values, unknown), source)
    except UserError as error:
        raise UserError("\n".join([*map(sentence, messages), str(error)])) from None
    if messages:
        raise UserError(sentences(messages, len(messages)))
    require_fitting_tasks(params)
    return params


def require_fitting_tasks(params: Params) -> None:
    """Raise UserError if a task is unknown, an evaluation would give away answers, or a reward could never be earned."""
    unknown = [str(mistake) for name in params.experiment.tasks if (mistake := _raised_by(get_task, name)) is not None]
    for tool, task in _offered(params).items() if not unknown else ():
        if (mistake := _raised_by(TOOLS.get, tool)) is not None:
            unknown.append(str(mistake).replace(f"correct {TOOLS.key}", f"correct the tools of the task {task}"))
    checks = (_oracles, _verifiers, _scorers, _rewards, _rewards_without_report, _agents, _tools, _pictures)
    mistakes = unknown or [mistake for check in checks for mistake in check(params)]
    if mistakes:
        raise UserError(sentences(mistakes, len(mistakes)))


def _oracles(params: Params) -> Iterator[str]:
    for name in params.experiment.evaluate:
        if not params.evaluation.oracles and get_task(name).oracle:
            yield (
                f"experiment.evaluate names {name}, which tells the policy whether its answer is right, so that its score "
                "would say nothing: evaluate the task in a form without that help, or set evaluation.oracles to true to have its "
                "scores marked."
            )


def _verifiers(params: Params) -> Iterator[str]:
    """Yield errors for uses of a task that has no right answers, where only these would count, and for unreadable ground truths."""
    for name in params.experiment.evaluate:
        if not get_verifier(get_task(name).verifier).judges:
            yield f"experiment.evaluate names {name}, whose problems have no right answers: evaluate another task."
    accuracy, name = params.reward.components.get("accuracy"), params.reward.verifier
    for train in map(get_task, params.experiment.train_tasks):
        verifier = train.verifier if name == "task" else name
        if accuracy is not None and accuracy.counts and not get_verifier(verifier).judges:
            yield (
                f"reward.components has accuracy, and {train.name} has no right answers: set its weight to 0.0, and reward by "
                "reward_model or judge."
            )
        reads = None if verifier == train.verifier else get_verifier(verifier).reads_truths_of
        if reads is not None and train.verifier not in reads:
            yield (
                f"reward.verifier is {name}, which cannot read the ground truths of {train.name}, a task of the verifier "
                f"{train.verifier}: set it to task, or train on another task."
            )


def _scorers(params: Params) -> Iterator[str]:
    """Yield an error for each published scorer that is for none of the evaluated tasks."""
    verifiers = {get_task(name).verifier for name in params.experiment.evaluate}
    for scorer in map(SCORERS.get, params.evaluation.scoring.also):
        if not any(map(scorer.suits, verifiers)):
            yield (
                f"evaluation.scoring.also names {scorer.name}, which is for tasks of the verifiers {', '.join(scorer.verifiers)}, "
                f"but those of experiment.evaluate have {', '.join(sorted(verifiers))}: delete it, or evaluate another task."
            )


def _rewards(params: Params) -> Iterator[str]:
    """Yield an error for each component that needs tools or tests which all train tasks lack, or one that has no other component."""
    lacking = {task: _unearned(params, task) for task in params.experiment.train_tasks}
    whole = {name for name, config in params.reward.components.items() if config.counts}
    shared = set.intersection(*map(set, lacking.values()))
    for mistakes in lacking.values():
        yield from (text for name, text in mistakes.items() if name in shared or mistakes.keys() == whole)


def _unearned(params: Params, name: str) -> dict[str, str]:
    """Return the error for each component that is always 0 on a task."""
    task, mistakes = get_task(name), dict[str, str]()
    verifier = task.verifier if params.reward.verifier == "task" else params.reward.verifier
    has_tools = task.tools or params.rollout.agent.name != OWN_LOOP  # a program or an environment may bring its own
    for name, config in ((name, config) for name, config in params.reward.components.items() if config.counts):
        if COMPONENTS.get(name).needs_tools and not has_tools:
            mistakes[name] = (
                f"reward.components.{name}.weight is {config.weight}, but {task.name} offers no tool to call: set it to 0.0, "
                "or train on a task with tools."
            )
        if COMPONENTS.get(name).needs_tests and not get_verifier(verifier).gives_shares:
            mistakes[name] = (
                f"reward.components.{name}.weight is {config.weight}, but the verifier {verifier} runs no tests: set it to 0.0, or train "
                "on a task with the verifier unit_tests or ifeval."
            )
    return mistakes


def _rewards_without_report(params: Params) -> Iterator[str]:
    agent = params.rollout.agent
    kind = AGENTS.get(agent.name)
    if _raised_by(kind.check, agent) is not None or kind.reports(agent):  # errors of the check are reported elsewhere
        return
    for key in params.reward.reported_keys:
        yield (
            f"{key} takes what a program or an environment reports, and rollout.agent {agent.name} never reports anything: take an "
            "agent that does, give an environment a method get_reward or reward_functions (docs/agents.md), or leave this out."
        )


def _agents(params: Params) -> Iterator[str]:
    """Yield an error for each task whose attempts the agent of rollout.agent cannot make."""
    agent = params.rollout.agent
    if (mistake := _raised_by(AGENTS.get(agent.name).check, agent)) is not None:
        yield str(mistake)
    calling = [name for name in params.experiment.tasks if get_task(name).tools]
    if agent.name == OWN_LOOP and agent.max_turns == 1 and calling:
        yield (
            f"rollout.agent.max_turns is 1, and {calling[0]} offers tools: a call takes a turn and what follows its result another; "
            "set it to 2 or more."
        )
    with_pictures = [name for name in params.experiment.tasks if get_task(name).images]
    if with_pictures and not AGENTS.get(agent.name).takes_pictures:
        yield (
            f"rollout.agent is {agent.name}, whose programs are told a problem as text, and {with_pictures[0]} has prompts with pictures: "
            f"take the agent {OWN_LOOP}, or another task."
        )


def _tools(params: Params) -> Iterator[str]:
    """Yield an error for each offered tool that cannot work with its parameters in rollout.tools."""
    for tool in _offered(params):
        if (mistake := _raised_by(TOOLS.get(tool).check, config_for(tool, params.rollout.tools))) is not None:
            yield str(mistake)


def _pictures(params: Params) -> Iterator[str]:
    """Yield errors for tasks with pictures: no support by model, chat format or engine, or no room for one of full size."""
    model, longest = params.model, params.training.max_prompt_tokens
    with_pictures = [name for name in params.experiment.tasks if get_task(name).images]
    if with_pictures and not model.may_take_pictures:
        yield (
            f"{with_pictures[0]} has prompts with pictures, and model.source {model.source} gives a model of text alone: choose a "
            "vision-language model (model.fresh.vision.family, or one of the hub), or another task."
        )
    engine = params.runtime.engine
    if with_pictures and not capabilities_of(engine).pictures:
        yield (
            f"{with_pictures[0]} has prompts with pictures, and the engine {engine.name} takes text alone: choose another "
            "runtime.engine.name, or another task."
        )
    if with_pictures and not CHATS.get(params.rollout.chat.name).takes_pictures:
        yield (
            f"rollout.chat is {params.rollout.chat.name}, which writes text alone, and {with_pictures[0]} has prompts with pictures: set "
            "rollout.chat to {name: template}, or take another task."
        )
    most = model.full_picture_tokens
    shown = [name for name in params.experiment.train_tasks if get_task(name).images]
    if most is not None and shown and most > longest:
        yield (
            f"a picture of {shown[0]} may take {most} tokens, and training.max_prompt_tokens is {longest}: "
            "lower model.max_pixels, or raise training.max_prompt_tokens."
        )


def _offered(params: Params) -> dict[str, str]:
    """Return the tools that the tasks offer, each with one of these tasks."""
    return {tool: name for name in params.experiment.tasks for tool in get_task(name).tools}


def _raised_by(check: Callable[[Any], object], what: Any) -> UserError | None:
    try:
        check(what)
    except UserError as error:
        return error
    return None


def _names(values: Mapping[str, Any]) -> list[str]:
    """Return the first tasks that unchecked values name, without repeats; the schema refuses other values."""
    experiment = values.get("experiment")
    if not isinstance(experiment, Mapping):
        return []
    named = list[Any]()
    for key in ("train", "evaluate", "tasks"):
        value = experiment.get(key)
        named += [*value] if isinstance(value, list | dict) else [value]
    texts = (name for name in named if isinstance(name, str) and len(name) <= LONGEST_NAME)
    return list(dict.fromkeys(texts))[:MOST_MISTAKES]


def _as_meant(values: Mapping[str, Any], unknown: Collection[str]) -> dict[str, Any]:
    """Replace each unknown task by the nearest known one, so that advice on other keys does not repeat the mistake."""
    experiment = values.get("experiment")
    if not unknown or not isinstance(experiment, Mapping):
        return dict(values)
    meant = {name: near for name in unknown if (near := TASKS.nearest(name))}
    tasks = {key: _corrected(experiment[key], meant) for key in ("train", "evaluate", "tasks") if key in experiment}
    return {**values, "experiment": {**experiment, **tasks}}


def _corrected(value: Any, meant: Mapping[str, str]) -> Any:
    """Replace names; in a list or a mapping, leave out a replacement that is already in it."""
    if isinstance(value, list | dict):
        names = [name for name in value if not (name in [*meant] and meant[name] in value)]
        corrected = [_corrected(name, meant) for name in names]
        return corrected if isinstance(value, list) else dict(zip(corrected, map(value.get, names), strict=True))
    return meant.get(value, value) if isinstance(value, str) else value
