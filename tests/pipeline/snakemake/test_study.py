"""A study beside an installed dagrpo has the rules and the code of a clone; so has a module of another Snakefile."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pipeline.snakemake import clones
from tests.pipeline.snakemake.clones import ROOT, TINY

from dagrpo.config.documents import params_yaml
from dagrpo.config.presets import composed
from dagrpo.config.schema import parse
from dagrpo.pipeline.dvc.code import FOLDER
from dagrpo.pipeline.job_files import code_files
from dagrpo.pipeline.stages import all_stages

PRESET = "arithmetic_tiny"
MODEL = f"models/{PRESET}/tiny_qwen2/manifest.json"
THEIRS = f"""configfile: "theirs.yaml"


module dagrpo:
    snakefile:
        config["snakefile"]


use rule * from dagrpo


use rule report from dagrpo as report with:
    message:
        "our page"


rule size:
    input:
        "{MODEL}",
    output:
        "size.txt",
    log:
        "logs/size.log",
    conda:
        "environment.yaml"
    shell:
        "wc -c < {{input}} > {{output}} 2> {{log}}"
"""
TASK = {"train": "my_lab.capitals.TASK", "evaluate": ["my_lab.capitals.TASK"], "tasks": ["my_lab.capitals.TASK"]}
NOTHING = "Nothing to be done"
slow, nightly = pytest.mark.slow, pytest.mark.nightly


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel holds, as a folder for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ("egg_info", "--egg-base", str(folder), "build_py", "--build-lib", str(folder / "site"))
    subprocess.run(
        (sys.executable, "-c", "from setuptools import setup; setup()", "-q", *build),
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return folder / "site"


@pytest.fixture
def study(site: Path, tmp_path: Path) -> Path:
    _run(tmp_path, site, "dagrpo", "init", "my_study")
    return tmp_path / "my_study"


def _run(folder: Path, site: Path, *command: str) -> str:
    """Run a module of Python in a folder, with the dagrpo of `site`; return its output."""
    environment = clones.environment(folder) | {"PYTHONPATH": str(site)}
    line = (sys.executable, "-m", *command)
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _with_tiny(study: Path) -> Path:
    (study / "params.yaml").write_text(params_yaml(parse(TINY)))
    return study


@slow
def test_a_study_is_planned_with_the_code_of_a_clone(study: Path, site: Path) -> None:
    planned = _run(study, site, "snakemake", "--cores", "2", "-n", "target")
    assert re.search(r"^total +14$", planned, re.MULTILINE)
    for name, stage in all_stages().items():
        code = code_files(composed([PRESET]), stage)
        (job,) = (study / ".state/jobs").glob(f"{name}-*.json")
        planned = json.loads(job.read_text())["code"]
        assert sorted(json.loads(job.with_name(f"{planned}.json").read_text())) == code
    for link in ("src+dagrpo", "workflow+scripts+stage.py"):
        assert (study / FOLDER / link).resolve().is_relative_to(site / "dagrpo")


@nightly
def test_a_study_is_not_written_over_another_and_what_is_generated_stays(study: Path, site: Path) -> None:
    with pytest.raises(AssertionError, match=r"has Snakefile and .* and profiles already"):
        _run(study.parent, site, "dagrpo", "init", "my_study")
    kept = {path: (study / path).read_bytes() for path in ("params.yaml", "dvc.yaml")}
    _run(study, site, "dagrpo", "generate")
    assert kept == {path: (study / path).read_bytes() for path in kept}


@nightly
def test_own_code_in_a_study_is_found_and_an_edit_to_it_runs_its_stages_again(study: Path, site: Path) -> None:
    """Without PYTHONPATH."""
    assert "PYTHONPATH where" not in _run(study, site, "dagrpo", "new", "task", "capitals", "--package", "src/my_lab")
    values = composed([PRESET]).model_dump()
    (study / "own.yaml").write_text(json.dumps({"use": [PRESET], "experiment": values["experiment"] | TASK}))
    _run(study, site, "dagrpo", "use", "own.yaml", "--force")
    assert "- src/my_lab/capitals.py\n" in (study / "dvc.yaml").read_text()
    _run(study, site, "dagrpo.pipeline.dvc.check")
    _run(study, site, "snakemake", "--cores", "2", "prepared")
    assert NOTHING in _run(study, site, "snakemake", "--cores", "2", "-n", "prepared")
    with (study / "src/my_lab/capitals.py").open("a") as module:
        module.write("# edited\n")
    assert re.search(r"^prepare +1$", _run(study, site, "snakemake", "--cores", "2", "-n", "prepared"), re.MULTILINE)


@nightly
@pytest.mark.parametrize("place", ["clone", "installed"])
def test_another_snakefile_has_the_rules_as_a_module(place: str, site: Path, tmp_path: Path) -> None:
    """Also without DVC and git."""
    snakefile, path = {"clone": (ROOT, ROOT / "src"), "installed": (site / "dagrpo/project", site)}[place]
    (tmp_path / "Snakefile").write_text(THEIRS)
    (tmp_path / "theirs.yaml").write_text(f"snakefile: {snakefile}/Snakefile\n")
    (tmp_path / "environment.yaml").touch()
    (tmp_path / "params.yaml").write_text(params_yaml(composed([PRESET])))
    assert "good condition" in _run(tmp_path, path, "snakemake", "--lint")
    planned = _run(tmp_path, path, "snakemake", "--cores", "2", "-n", "target")
    assert re.search(r"^total +14$", planned, re.MULTILINE)
    _run(tmp_path, path, "snakemake", "--cores", "2", "size.txt")
    assert int((tmp_path / "size.txt").read_text()) == (tmp_path / MODEL).stat().st_size
    assert NOTHING in _run(tmp_path, path, "snakemake", "--cores", "2", "-n", "size.txt")
    assert NOTHING in _run(tmp_path, path, "snakemake", "--cores", "2", "-n", "-s", f"{snakefile}/Snakefile", MODEL)


@nightly
def test_the_module_of_the_page_on_installation_is_planned_in_an_empty_folder(site: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs/installation.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "Snakefile").write_text(example)
    (tmp_path / "params.yaml").write_text(params_yaml(composed([PRESET])))
    planned = _run(tmp_path, site, "snakemake", "--cores", "2", "-n", f"tables/{PRESET}.csv")
    assert re.search(r"^table +1$", planned, re.MULTILINE)
    assert re.search(r"^report +1$", planned, re.MULTILINE)


@nightly
@pytest.mark.dag
def test_a_wheel_in_an_environment_of_its_own_gives_the_digests_of_a_clone(
    run_by_snakemake: Path, tmp_path: Path
) -> None:
    """The environment is this one by hard links, without its dagrpo. Then DVC finds nothing to do."""
    python = _environment_with_a_wheel(tmp_path)
    programs = {"PATH": f"{python.parent}:{os.environ['PATH']}", "PYTHONPATH": ""}
    environment = clones.environment(tmp_path) | programs

    def run(folder: Path, *command: str) -> str:
        line = (str(python.parent / command[0]), *command[1:])
        done = subprocess.run(
            line, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run(tmp_path, "dagrpo", "init", "my_study")
    study = _with_tiny(tmp_path / "my_study")
    run(study, "snakemake", "--cores", "2", "target")
    assert clones.outputs(study) == clones.outputs(run_by_snakemake)
    assert "Data and pipelines are up to date" in run(study, "dvc", "repro")


def _environment_with_a_wheel(folder: Path) -> Path:
    """Return the Python of a copy of this environment with dagrpo as a wheel."""
    here, copy = Path(sys.prefix), folder / "venv"
    shutil.copytree(here, copy, symlinks=True, copy_function=os.link)
    packages = next(copy.glob("lib/python*/site-packages"))
    for own in (*packages.glob("__editable__.dagrpo-*"), *packages.glob("dagrpo-*.dist-info")):
        shutil.rmtree(own) if own.is_dir() else own.unlink()
    for script in (copy / "bin").iterdir():
        if not script.is_symlink() and (text := script.read_bytes()).startswith(b"#!"):
            script.unlink()  # a link: to write would change this environment
            script.write_bytes(text.replace(bytes(here), bytes(copy)))
            script.chmod(0o755)
    python = copy / "bin/python"
    uv = ("-m", "uv", "--no-cache")
    source = clones.clone(folder / "source")  # without what an earlier build left
    build = (*uv, "build", "-q", "--wheel", "--no-build-isolation", f"--out-dir={folder / 'dist'}", str(source))
    subprocess.run((sys.executable, *build), check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    subprocess.run(
        (sys.executable, *uv, "pip", "install", "-q", "--python", str(python), "--no-deps", str(wheel)), check=True
    )
    return python
