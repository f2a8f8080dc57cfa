"""TEMPORARY minimal server, to be replaced by the owner of this package."""
import os, secrets, signal, socket, subprocess, sys, time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
import httpx
from dagrpo.params.rollout import Engine
from dagrpo.rollout.client import RolloutClient


@contextmanager
def serving(folder: Path, engine: Engine, log: Path, *, deterministic: bool) -> Iterator[RolloutClient]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0)); port = s.getsockname()[1]
    env = os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    cmd = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(folder), "--device", "cpu", "--host", "127.0.0.1", "--port", str(port), "--attention-backend", "torch_native", "--cuda-graph-backend-decode=disabled", "--cuda-graph-backend-prefill=disabled", "--dtype", engine.dtype, "--max-total-tokens", str(engine.max_total_tokens), "--max-running-requests", str(engine.max_running_requests), "--skip-server-warmup", "--sleep-on-idle", "--enable-deterministic-inference"]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as f:
        p = subprocess.Popen(cmd, env=env, stdout=f, stderr=f, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + engine.start_timeout
        while True:
            if p.poll() is not None or time.monotonic() > end: raise ValueError(f"server died: {log}")
            try:
                if httpx.get(url + "/health").status_code == 200: break
            except httpx.HTTPError: pass
            time.sleep(0.2)
        yield RolloutClient(url)
    finally:
        os.killpg(p.pid, signal.SIGKILL)
