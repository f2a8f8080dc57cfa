"""`dagrpo init`: a study, a folder for experiments of one's own."""

import os
import shlex
import shutil
import subprocess
from contextlib import chdir
from pathlib import Path
from typing import Annotated

import typer

from dagrpo.config.documents import SCHEMA_PATH, json_schema, params_yaml
from dagrpo.config.places import ROOT
from dagrpo.config.presets import composed
from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.pipeline.dvc import file
from dagrpo.pipeline.dvc.private import keep_other_experiments
from dagrpo.utils.files import write_text

PRESET = "arithmetic_tiny"  # of params.yaml, as in the repository
IGNORED = ".gitignore"
OF_A_CLONE = "# Only in a clone"  # begins the part of it that a study does not have
COPIED = (IGNORED, ".dvcignore", ".dvc/config", ".dvc/.gitignore", ".dvc/plots", "profiles")
WRITTEN = (
    "Snakefile",
    "snakefile",
    "workflow",
    "params.yaml",
    "dvc.yaml",
    "dvc.lock",
    ".dvc",
    ".dvcignore",
    IGNORED,
    "profiles",
)
SNAKEFILE = '''"""A study with dagrpo: `snakemake --cores all target`. Rules of your own go below."""

from dagrpo.config.places import SNAKEFILE
from dagrpo.pipeline.snakemake.checks import require_project

require_project()


configfile: "params.yaml"


module dagrpo:
    snakefile:
        SNAKEFILE


use rule * from dagrpo
'''


def init(
    folder: Annotated[Path, typer.Argument(help="folder to write; its name is yours to choose")] = Path(),
) -> None:
    """Write a folder for experiments: params.yaml, Snakefile, dvc.yaml, a profile, and a git repository outside of another one."""
    there = [name for name in WRITTEN if (folder / name).exists()]
    if there:
        raise UserError(f"{folder.resolve()} has {' and '.join(there)} already: name another folder.")
    params = composed([PRESET])
    folder.mkdir(parents=True, exist_ok=True)
    with chdir(folder):
        _write(params)
        is_outside = subprocess.run(("git", "rev-parse", "--is-inside-work-tree"), capture_output=True).returncode
        if is_outside and subprocess.run(("git", "init", "--quiet"), capture_output=True).returncode:  # DVC needs one
            raise UserError(f"git could not make a repository in {os.getcwd()}: run `git init` and `git add .` there.")
        keep_other_experiments()
    typer.echo(f"Written: {folder.resolve()}, with the experiment {PRESET} in params.yaml. Next:")
    for step in (
        *([f"cd {shlex.quote(str(folder))}"] if folder != Path() else []),
        "snakemake --cores all target",
        "dagrpo new task capitals --package src/my_lab",
    ):
        typer.echo(f"    {step}")


def _write(params: Params) -> None:
    for name in COPIED:
        source, target = ROOT / name, Path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)
    ignored, *_ = Path(IGNORED).read_text().partition(OF_A_CLONE)
    write_text(Path(IGNORED), ignored)
    write_text(Path("Snakefile"), SNAKEFILE)
    write_text(Path("params.yaml"), params_yaml(params))
    write_text(Path("dvc.lock"), "schema: '2.0'\nstages: {}\n")
    write_text(Path(SCHEMA_PATH), json_schema())
    file.generate(params)
