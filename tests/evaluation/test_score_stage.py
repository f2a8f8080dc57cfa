"""The score stage from its command line: a score that an oracle helped with is marked."""

from pathlib import Path

import pytest
from tests.evaluation.test_scoring import write
from tests.pipeline.running import run_stage

from dagrpo.evaluation.config import Evaluation
from dagrpo.utils.files import read_json

PARAMS = {"evaluation": Evaluation().model_dump()}
OUTPUTS = ("scores=s/scores.parquet", "summary=s/scores.json", "provenance=s/provenance.json")


@pytest.mark.parametrize(("task", "oracle"), [("gsm8k", False), ("gsm8k_feedback", True)])
def test_a_score_says_whether_an_oracle_helped(
    task: str, oracle: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGRPO_TRACKING", "off")
    completions = write(tmp_path, task=task)
    run_stage("score", PARAMS, [f"completions={completions}"], OUTPUTS)
    assert read_json(Path("s/scores.json"))["oracle"] is oracle
    assert (f"{task} (oracle)" in capsys.readouterr().err) == oracle
