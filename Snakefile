"""The DAG from raw data to a score with an error bar: `snakemake --cores all target`."""

import sys
from pathlib import Path

from snakemake.utils import min_version

# This file's folder, also in a module of another Snakefile.
folder = Path(workflow.current_basedir)
sys.path.insert(0, str(folder / "workflow/scripts"))
from own_code import use_code_of

use_code_of(folder)
from dagrpo.pipeline.snakemake.workflow import Experiments, require_project

min_version("9.27")
require_project()


configfile: "params.yaml"


experiments = Experiments(workflow, config)


include: "workflow/rules/stages.smk"


report: "workflow/report/workflow.rst"


wildcard_constraints:
    seed=r"\d+",
    task=r"[a-z0-9][A-Za-z0-9_.-]*",


onstart:
    experiments.start()


onsuccess:
    experiments.finish()


onerror:
    experiments.record()


rule target:
    default_target: True
    input:
        experiments.outputs(),
    message:
        f"{experiments.description} is complete."


rule prepared:
    input:
        experiments.outputs("prepare"),
    message:
        f"The data of {experiments.description} is prepared."
