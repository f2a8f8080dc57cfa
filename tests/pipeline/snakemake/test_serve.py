"""`dagrpo serve` on a finished experiment, with the real server: the page, the endpoint, and the end by Ctrl-C."""

import json
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.snakemake import clones

SECONDS = 300  # for two servers to start


@pytest.mark.dag
@pytest.mark.nightly
def test_a_finished_run_is_served_until_ctrl_c(run_by_snakemake: Path, tmp_path: Path) -> None:
    folder, log = clones.copied(run_by_snakemake, tmp_path / "clone"), tmp_path / "serve.log"
    with log.open("w") as output, subprocess.Popen(
        ["dagrpo", "serve", clones.NAME, "--seed", clones.RUN.name.removeprefix("seed_")],
        cwd=folder, stdout=output, stderr=output, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        try:
            text = _ready(process, log)
            page, key = re.findall(r"Page: (\S+)/#(\S+)", text)[0]
            problem = _post(f"{page}/problem", key, {"number": 0})
            asked = {"text": problem["text"], "greedy": True}
            (once,) = _post(f"{page}/answer", key, {"policy": "trained"} | asked)
            _post(f"{page}/forget", key, {})
            (again,) = _post(f"{page}/answer", key, {"policy": "trained"} | asked)
            assert once["role"] == "assistant"
            assert once == again, "greedy answers to the same conversation are the same"
            assert _post(f"{page}/answer", key, {"policy": "base"} | asked)
            for url in re.findall(r"OPENAI_BASE_URL=(\S+)", text):
                body = {"model": "policy", "messages": [{"role": "user", "content": problem["text"]}]}
                assert _post(f"{url}/chat/completions", key, body)["choices"][0]["message"]["role"] == "assistant"
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, log.read_text()[-2000:]


def _ready(process: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + SECONDS
    while "Ctrl-C ends it." not in log.read_text():
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < until, log.read_text()[-2000:]
        time.sleep(0.5)
    return log.read_text()


def _post(url: str, key: str, body: Any) -> Any:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60) as answer:
        return json.loads(answer.read())
