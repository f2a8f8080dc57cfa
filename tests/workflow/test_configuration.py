"""Snakemake's config as checked parameters: which of its overrides make a run another than params.yaml's."""

from pathlib import Path

import pytest

from dagrpo.params.documents import params_yaml
from dagrpo.params.schema import Params, parse
from dagrpo.workflow.configuration import PARAMS, differs_from_file


def test_only_what_changes_a_result_makes_a_run_differ_from_params_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    PARAMS.write_text(params_yaml(Params()))
    assert not differs_from_file(Params())
    assert not differs_from_file(parse({"runtime": {"training": {"processes": 4, "micro_batch_size": 2}}}))
    assert differs_from_file(parse({"training": {"steps": 3}}))
