"""TEMPORARY minimal client, to be replaced by the owner of this package."""
from collections.abc import Sequence
from pathlib import Path
import httpx
from dagrpo.records import Completion, SamplingRequest


class RolloutClient:
    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=600)

    def generate(self, requests: Sequence[SamplingRequest], *, lockstep: bool) -> list[Completion]:
        body = {"input_ids": [list(r.input_ids) for r in requests], "sampling_params": [{"temperature": r.temperature, "top_p": r.top_p, "top_k": r.top_k, "max_new_tokens": r.max_new_tokens, "sampling_seed": r.seed} for r in requests], "return_logprob": True, "logprob_start_len": -1}
        out = self.http.post("/generate", json=body); out.raise_for_status()
        return [Completion(token_ids=tuple(o["output_ids"]), logprobs=tuple(x[0] for x in o["meta_info"]["output_token_logprobs"]), finish_reason=o["meta_info"]["finish_reason"]["type"]) for o in out.json()]

    def update_weights(self, folder: Path, version: str) -> None:
        out = self.http.post("/update_weights_from_disk", json={"model_path": str(folder), "weight_version": version, "flush_cache": True}); out.raise_for_status()
        assert out.json()["success"], out.text
        self.http.post("/flush_cache")
