"""`dagrpo serve` of a kept step."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.api.conftest import SHAPE

from dagrpo.checkpoints.kept import write
from dagrpo.checkpoints.manifest import tensor_digest_of
from dagrpo.checkpoints.source import open_tensors
from dagrpo.checkpoints.tokenizers import load_tokenizer
from dagrpo.config.schema import Params
from dagrpo.core.errors import UserError
from dagrpo.core.types import Row
from dagrpo.data.schema import to_table
from dagrpo.evaluation.sampling import Checkpoint, SplitAttempts
from dagrpo.models.fresh import make_fresh
from dagrpo.utils.files import write_json
from dagrpo.utils.tables import write_parquet
from dagrpo_agents.serve import policy
from dagrpo_agents.serve.policy import open_policies


def test_a_kept_step_is_served_as_the_trained_policy_was_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, data = Path("results/tiny/runs/seed_0"), Path("data/tiny/sums")
    make_fresh(run / "exported", SHAPE, torch.float32)
    make_fresh(run / "initial", SHAPE, torch.bfloat16)
    write(run / "kept", run / "initial", 2, open_tensors(run / "exported"))
    prompt = ({"role": "user", "content": "1+1="},)
    row = Row(task="sums", prompt=prompt, question="1+1=", answer="2", ground_truth="2")
    write_parquet(data / "test.parquet", to_table([row]))
    write_parquet(data / "passages.parquet", to_table([row]))
    inputs = [run / "exported/manifest.json", data / "test.parquet", data / "passages.parquet"]
    params = Params().model_dump(mode="json")
    record = {"inputs": {str(path): "" for path in inputs}, "params": params, "seed": 0}
    write_json(run / "eval/sums/trained" / policy.RECORD, record)
    Path("params.yaml").write_text("{}\n")
    served = dict[str, SplitAttempts]()

    @contextmanager
    def opened(attempts: SplitAttempts) -> Iterator[Checkpoint]:
        served[tensor_digest_of(attempts.model)] = attempts
        yield Checkpoint(tokenizer=load_tokenizer(attempts.model), engine=lambda: None)  # type: ignore[arg-type,return-value]

    monkeypatch.setattr(policy, "opened", opened)
    with open_policies(run, ["step_2"], None) as (one,):
        assert one.name == "step_2"
        assert set(served) == {tensor_digest_of(run / "exported")}
    with pytest.raises(UserError, match="has kept no policy of step 3, but of 2"), open_policies(run, ["step_3"], None):
        pass
