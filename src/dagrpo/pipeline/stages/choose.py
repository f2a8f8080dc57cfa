"""Stage choose: the policy with the best score on the validation rows."""

from dataclasses import replace

from dagrpo.pipeline.declaration import RUN, VALIDATION, Job, Stage
from dagrpo.pipeline.stages import export, score

CHOICE = f"{RUN}/chosen/choice.json"


def work(job: Job) -> None:
    """Write the chosen policy in the Hugging Face layout, and how it was chosen."""
    from dagrpo.checkpoints.convert import export_kept
    from dagrpo.checkpoints.store import link
    from dagrpo.evaluation.choice import chosen_by
    from dagrpo.evaluation.config import STEP, Scoring
    from dagrpo.utils.console import summary
    from dagrpo.utils.files import write_json

    choice = chosen_by(job.inputs["completions"], job.section(Scoring, "evaluation.scoring"))
    policy, folder = choice["policy"], job.output("manifest").parent
    if policy == "trained":
        link(job.input("trained").parent, folder)
    else:
        export_kept(job.input("kept").parent, job.input("initial").parent, int(policy.removeprefix(STEP)), folder)
    write_json(job.output("choice"), choice)
    scores = [
        (each["policy"], f"{each['score']:.3f}, chosen in {each['share']:.0%} of draws")
        for each in choice["candidates"]
    ]
    summary(f"choose, seed {job.seed}", [*scores, ("chosen", policy)])


STAGE = Stage(
    name="choose",
    work=work,
    reads=("evaluation.choose", "evaluation.scoring"),
    inputs={
        "completions": f"{VALIDATION}/completions.parquet",
        "trained": f"{RUN}/exported/manifest.json",
        "initial": f"{RUN}/initial/manifest.json",
        "kept": f"{RUN}/kept/manifest.json",
    },
    outputs={
        "manifest": f"{RUN}/chosen/manifest.json",
        "choice": CHOICE,
        "provenance": f"{RUN}/chosen/provenance.json",
    },
    needs=lambda runtime: replace(export.STAGE.needs(runtime), beside=score.GRADERS, checkpoint="trained"),
    wanted=lambda params: params.evaluation.choose is not None,
    computes=True,
    label="seed {seed}",
    selects=("verifier", "scorer", "format", "model_format"),
)
