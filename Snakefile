"""The DAG from raw data to a score with an error bar: `snakemake --cores all target`."""

import re
import sys
from pathlib import Path

from snakemake.utils import min_version

# This file's folder, also in a module of another Snakefile.
folder = Path(workflow.current_basedir)
sys.path.insert(0, str(folder / "workflow/scripts"))
from own_code import use_code_of

use_code_of(folder)
from dagrpo.pipeline.snakemake.workflow import Experiment, require_project

min_version("9.27")
require_project()


configfile: "params.yaml"


experiment = Experiment(workflow, config)


include: "workflow/rules/stages.smk"


report: "workflow/report/workflow.rst"


wildcard_constraints:  # a path of another experiment or model is not made with these parameters
    experiment=re.escape(experiment.folder),
    model=re.escape(experiment.params.model.name),
    seed=r"\d+",
    task=r"[a-z0-9][A-Za-z0-9_.-]*",
    policy="base|trained",


onstart:
    experiment.start()


onsuccess:
    experiment.finish()


onerror:
    experiment.record()


rule target:
    default_target: True
    input:
        experiment.outputs(),
    message:
        f"{experiment.folder} is complete."


rule prepared:
    input:
        experiment.outputs("prepare"),
    message:
        f"The data of {experiment.folder} is prepared."
