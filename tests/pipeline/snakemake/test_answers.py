"""What `dagrpo` says of the real DAG is what Snakemake does: nothing where all is done, and the same stages after a change."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.snakemake import clones
from tests.pipeline.snakemake.clones import NAME, RUN

pytestmark = pytest.mark.dag


@pytest.fixture(scope="module")
def folder(run_by_snakemake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with the whole experiment in it, to change."""
    return clones.copied(run_by_snakemake, tmp_path_factory.mktemp("answers") / "clone")


def answered(folder: Path, *arguments: str) -> str:
    return clones.run(folder, "python", "-m", "dagrpo", *arguments)


def status(folder: Path) -> dict[str, Any]:
    (found,) = json.loads(answered(folder, "status", "--json"))
    return dict(found)


def test_what_snakemake_has_just_made_is_done_and_every_digest_is_as_recorded(folder: Path) -> None:
    found = status(folder)
    assert (found["experiment"], found["state"], found["stale"]) == (NAME, "done", [])
    assert found["made"] == found["expected"]
    verified = json.loads(answered(folder, "verify", NAME, "--json"))
    assert {each["state"] for each in verified} == {"whole"}
    assert f"{RUN}/rollouts/digests.parquet" in {each["path"] for each in verified}
    assert "has nothing to do" in answered(folder, "status", "--why", f"{RUN}/policy")


@pytest.mark.nightly
def test_after_a_change_of_a_parameter_and_of_code_the_stale_stages_are_those_that_snakemake_runs_again(
    folder: Path,
) -> None:
    params, code = folder / "params.yaml", folder / "src/dagrpo/pipeline/stages/export.py"
    changed = params.read_text().replace("bootstrap_draws: 100", "bootstrap_draws: 101")
    assert changed != params.read_text()
    params.write_text(changed)
    code.write_text(code.read_text() + "# a remark\n")
    stale = {each["what"].partition(",")[0] for each in status(folder)["stale"]}
    assert stale == {"export", "score"}
    plan = clones.run(folder, "snakemake", "-n", "target")
    assert "score" in plan
    assert "export" in plan
    assert not any(f"{rule} " in plan for rule in ("prepare", "sft", "train"))
    assert "evaluation.scoring.bootstrap_draws was 100 and is 101" in answered(
        folder, "status", "--why", f"{RUN}/eval/arithmetic/base/scores.json"
    )
    told = answered(folder, "status", "--why", f"{RUN}/exported")
    assert "code: src/dagrpo/pipeline/stages/export.py has changed" in told
    assert "+ # a remark" in told
