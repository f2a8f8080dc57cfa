"""Phase of a starting SGLang server, by its log."""

from pathlib import Path

BYTES_TO_READ = 100_000  # of the log's end
PHASES = {  # what the log says when each begins; all small letters
    "server_args=": "starting its processes",
    "load weight begin": "loading weights",
    "load weight end": "setting up its cache",
    "capture cuda graph": "capturing CUDA graphs",
    "cuda graph begin": "capturing CUDA graphs",
    "application startup complete": "warming up",
    "fired up": "answering",
}


def phase_in(log: Path) -> str:
    """Return the latest phase in the log, in a few words."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - BYTES_TO_READ))
            text = file.read().decode(errors="replace").lower()
    except OSError:  # not there yet
        text = ""
    found = {text.rfind(words): phase for words, phase in PHASES.items()}
    latest = max(found)
    return found[latest] if latest >= 0 else "importing its packages"
