"""The DAG from raw data to a score with an error bar: `snakemake --cores all target`."""

import re
import sys
from pathlib import Path

from snakemake.utils import min_version

sys.path.insert(0, str(Path(workflow.basedir, "workflow/scripts")))
from own_code import use_code_of

use_code_of(Path(workflow.basedir))
from dagrpo.pipeline.snakemake.configuration import require_readable
from dagrpo.pipeline.snakemake.folder import require_writable

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
    experiment=re.escape(FOLDER),  # a path of another experiment is not made by this one's parameters
    seed=r"\d+",
    policy="base|trained",


onstart:
    start()


onsuccess:
    finish()


onerror:
    commit(FOLDER)
    record_runs()


rule target:
    default_target: True
    input:
        everything(),
    message:
        f"{FOLDER} is complete."


rule prepared:
    input:
        expand("data/{folder}/{task}/card.json", folder=FOLDER, task=experiment.tasks),
    message:
        f"The data of {FOLDER} is prepared."
