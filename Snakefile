"""The DAG from raw data to a score with an error bar: `snakemake --cores all target`."""

from snakemake.utils import min_version

from dagrpo.workflow.configuration import require_readable
from dagrpo.workflow.folder import require_writable

min_version("9.27")
require_readable()
require_writable()


configfile: "params.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/model.smk"
include: "workflow/rules/checkpoint.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"


report: "workflow/report/workflow.rst"


wildcard_constraints:
    task=r"[a-z0-9][a-z0-9_.-]*",
    model=r"[a-z0-9][a-z0-9_.-]*",
    experiment=r"[a-z0-9][a-z0-9_.-]*",
    seed=r"\d+",
    policy="base|trained",


onstart:
    start()


onsuccess:
    finish(experiment.name)


onerror:
    commit_what_ran()


rule target:
    default_target: True
    input:
        f"results/{experiment.name}/report/report.html",
    message:
        "{experiment.name} is complete."


rule prepared:
    input:
        expand("data/{task}/card.json", task=experiment.tasks),
    message:
        "The data of {experiment.name} is prepared."
