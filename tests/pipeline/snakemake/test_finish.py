"""What DVC is about to record must be what was run."""

from pathlib import Path

import pytest

from dagrpo.config.documents import params_yaml
from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import UserError
from dagrpo.pipeline.snakemake.configuration import PARAMS
from dagrpo.pipeline.snakemake.finish import require_same_parameters


def test_a_params_yaml_that_was_edited_while_dvc_ran_a_stage_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_STAGE", "prepare@tiny-arithmetic")
    PARAMS.write_text(params_yaml(Params()))
    require_same_parameters(Params())
    require_same_parameters(parse({"runtime": {"training": {"micro_batch_size": 1}}}))
    PARAMS.write_text(params_yaml(parse({"training": {"steps": 7}})))
    with pytest.raises(UserError, match=r"params.yaml was edited while this stage ran: what it made is not recorded"):
        require_same_parameters(Params())
    monkeypatch.delenv("DVC_STAGE")
    require_same_parameters(Params())
