"""Stage prepare: data/<experiment>/<task>/{train,validation,test,dropped,passages}.parquet and card.json.

The task is the name of the card's folder.
"""

from pathlib import Path

from dagrpo.pipeline.declaration import DATA, MODEL, RAW, Job, Params, Stage, Wildcards


def work(job: Job) -> None:
    """Write the task's folder."""
    from dagrpo.core.plugin_sections import Several
    from dagrpo.data.config import Data
    from dagrpo.data.prepare import prepare
    from dagrpo.tools import TOOLS
    from dagrpo.utils.console import summary

    folder = job.output("card").parent
    experiment = job.params["experiment"]
    card = prepare(
        folder.name,
        folder,
        job.section(Data, "data"),
        model=job.input("model").parent,
        evaluate=experiment["evaluate"],
        train=experiment["train_tasks"],
        tools=Several(TOOLS).check(job.params["rollout"]["tools"]),
        chat=job.params["rollout"]["chat"]["name"],
        longest=job.params["training"]["max_prompt_tokens"],
    )
    summary(f"prepare {card.task}", card.summary())


def raw(params: Params, wildcards: Wildcards) -> list[str]:
    """List the files of this machine that a task's problems and pass rates come from: a mirror's, the task's own, data.pass_rates."""
    from dagrpo.data.source import files_in_mirror
    from dagrpo.data.task import get_task

    task, mirror, rates = get_task(wildcards["task"]), params.data.mirror, params.data.pass_rates
    files = [] if mirror is None or task.source is None else files_in_mirror(task.source, Path(mirror))
    return sorted({*map(str, files), *task.files, *([rates] if rates else [])})


STAGE = Stage(
    name="prepare",
    work=work,
    reads=(
        "data",
        "experiment.evaluate",
        "experiment.train_tasks",
        "rollout.chat",
        "rollout.tools",
        "training.max_prompt_tokens",
    ),
    inputs={"model": MODEL, RAW: raw},
    outputs={
        **{name: f"{DATA}/{name}.parquet" for name in ("train", "validation", "test", "dropped", "passages")},
        "card": f"{DATA}/card.json",
        "provenance": f"{DATA}/provenance.json",
    },
    label="{task}",
    selects=("task", "verifier", "tool"),
    # Files of this machine may have changed.
    reusable=lambda params: params["data"]["mirror"] is None and params["data"]["pass_rates"] is None,
)
