"""What a server that starts is doing, by its log."""

from pathlib import Path

import pytest

from dagrpo.engine.sglang.startup import phase_in


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        (None, "importing its packages"),
        ("UserWarning: Triton is not supported\n", "importing its packages"),
        (
            "[03:32:22] server_args={'model_path': 'm'}\n[03:32:47] Load weight begin. avail mem=19.20 GB\n",
            "loading weights",
        ),
        ("Load weight begin.\nLoad weight end. elapsed=0.02 s\n", "setting up its cache"),
        ("Load weight end.\nCapture cuda graph begin.\n", "capturing CUDA graphs"),
        ("Load weight end.\nThe server is fired up and ready to roll!\n", "answering"),
    ],
)
def test_the_latest_phase_of_the_log_is_told(tmp_path: Path, text: str | None, phase: str) -> None:
    log = tmp_path / "server.log"
    if text is not None:
        log.write_text(text)
    assert phase_in(log) == phase
