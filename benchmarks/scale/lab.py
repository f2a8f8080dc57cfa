"""What commands take in a folder with many finished experiments and the result of a soak.

    python -m benchmarks.scale lab --folder /tmp/soak/soak_300_1024_all --experiments 200 > table.md

The folder is one of `soak`. A tiny experiment is run in it, and linked under other names, with its records rewritten. MLflow gets the
soak's runs, the tiny one's and those of some copies before the others are linked; these are then noted as recorded. Seconds are of the
whole command, start of Python included; a terminal on stderr shows whether there is a progress bar.
"""

import argparse
import hashlib
import json
import os
import pty
import re
import resource
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.scale.measuring import markdown
from benchmarks.scale.soak import environment, params_of, select, start

from dagrpo.config.schema import read_params
from dagrpo.utils.provenance import PROVENANCE, TOPS
from dagrpo.utils.run_info import SUFFIX

NAME = "one_of_many"
BAR = "━"  # of a progress bar
PORT = 5177
RUNS = {"max_results": 100, "order_by": ["attributes.start_time DESC"]}  # the first page


def table(arguments: Sequence[str]) -> str:
    """Make the experiments, run the commands and return the table."""
    parser = argparse.ArgumentParser(
        prog="lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="of a run of `soak`")
    parser.add_argument("--experiments", type=int, default=200)
    parser.add_argument("--recorded", type=int, default=6, help="number of copies that MLflow has")
    given = parser.parse_args(arguments)
    folder, count = given.folder.resolve(), given.experiments
    soak = read_params(folder / "params.yaml").experiment.name
    _run_one(folder)
    for number in range(given.recorded):
        copy(folder, NAME, _name(number))
    rebuilt = _row(folder, "dagrpo", "tracking", "rebuild")
    for number in range(given.recorded, count):
        copy(folder, NAME, _name(number))
    several = [_name(number) for number in range(min(20, count))]
    rows = [
        _row(folder, "dagrpo", "status"),
        _row(folder, "dagrpo", "status", soak),
        _row(folder, "dagrpo", "show", soak),
        _row(folder, "dagrpo", "compare", soak, several[0]),
        _row(folder, "dagrpo", "compare", *several),
        _row(folder, "dagrpo", "verify", soak),
        _row(folder, "dagrpo", "verify", several[0]),
        _report(folder, soak),
        [f"{rebuilt[0]}, {13 * (given.recorded + 2)} executions", *rebuilt[1:]],
        *_pages(folder),
    ]
    return markdown(("what", "seconds", "processor seconds", "progress bar"), rows)


def _name(number: int) -> str:
    return f"{NAME}_{number:03d}"


def _run_one(folder: Path) -> None:
    """Run the tiny experiment and put the soak's parameters back."""
    if (folder / "results" / NAME).exists():
        return
    own = (folder / "params.yaml").read_text()
    select(folder, params_of(NAME, 4, 4, 64, "all"))
    if start(folder, "snakemake", "--cores", "1", "target").wait():
        raise SystemExit((folder / "output.txt").read_text()[-4000:])
    (folder / "params.yaml").write_text(own)
    start(folder, "dagrpo", "generate").wait()


def copy(folder: Path, name: str, other: str) -> None:
    """Link a finished experiment under another name, with its records rewritten so that readers accept them."""
    records: list[Path] = []
    for top in (*TOPS, "logs"):
        for path in sorted((folder / top / name).rglob("*")):
            place = _place(folder, path, name, other)
            if path.name.endswith((PROVENANCE, SUFFIX)):
                records.append(path)
            elif path.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.hardlink_to(path)
    digests: dict[str, str] = {}
    for path in sorted(records, key=lambda path: (path.name.endswith(SUFFIX), "report" in path.parts)):
        text = re.sub(rf"\b{name}\b", other, path.read_text())
        for before, now in digests.items():
            text = text.replace(before, now)
        digests[hashlib.sha256(path.read_bytes()).hexdigest()] = hashlib.sha256(text.encode()).hexdigest()
        place = _place(folder, path, name, other)
        place.write_text(text)
        shutil.copystat(path, place)


def _place(folder: Path, path: Path, name: str, other: str) -> Path:
    top, _, *rest = path.relative_to(folder).parts
    return folder.joinpath(top, other, *rest)


def _row(folder: Path, *command: str) -> list[str]:
    seconds, processor, bar = measured(folder, *command)
    words = command if len(command) < 6 else (*command[:4], f"... ({len(command) - 2})")
    return [f"`{' '.join(words)}`", f"{seconds:.1f}", f"{processor:.1f}", "yes" if bar else ""]


def measured(folder: Path, *command: str) -> tuple[float, float, bool]:
    """Return seconds and processor seconds of a command, and whether it showed a progress bar. Raises SystemExit if it fails."""
    with _terminal() as (terminal, shown):
        began, before = time.monotonic(), _processor_seconds()
        done = subprocess.run(
            command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=terminal, check=False
        )
        seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"{command}: {done.stdout.decode()[-2000:]}{shown()[-2000:]}")
    return seconds, _processor_seconds() - before, BAR in shown()


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def _terminal() -> Iterator[tuple[int, Callable[[], str]]]:
    """Yield a terminal to write to, and the function that returns what was written, after the block."""
    own, theirs = pty.openpty()
    parts: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(own, 1 << 16):
                parts.append(part)
        except OSError:  # all writers have closed it
            return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield theirs, lambda: b"".join(parts).decode(errors="replace")
    finally:
        os.close(theirs)
        reader.join()
        os.close(own)


def _report(folder: Path, soak: str) -> list[str]:
    """Return the row of the stage report, by its own record of seconds."""
    shutil.rmtree(folder / "results" / soak / "report")
    _, _, bar = measured(folder, "snakemake", "--cores", "1", "target")
    account = json.loads((folder / "logs" / soak / f"report{SUFFIX}").read_text())
    processor = (folder / "logs" / soak / "report.benchmark.tsv").read_text().split()[-1]
    return ["stage `report` of the soak", f"{account['seconds']:.1f}", processor, "yes" if bar else ""]


def _pages(folder: Path) -> Iterator[list[str]]:
    """Yield rows of `dagrpo ui` with nothing to record, and of the first page of all runs."""
    mark = "from dagrpo_mlflow import sync; from dagrpo.utils.files import write_json; from pathlib import Path; "
    mark += "from dagrpo_mlflow.store import tracking_uri; "
    mark += "write_json(sync.SYNCED, {'states': sync._states(tracking_uri(Path.cwd())), 'incomplete': []})"
    measured(folder, "python", "-c", mark)
    with _terminal() as (terminal, shown):
        began = time.monotonic()
        server = subprocess.Popen(
            ("dagrpo", "ui", "--port", str(PORT)),
            cwd=folder,
            env=environment(folder),
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
        )
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            seconds = time.monotonic() - began
            if not line.startswith("MLflow"):
                raise SystemExit(line)
            page = line.partition("experiments/")[2].partition("/")[0]
            experiments = [each["experiment_id"] for each in _ask("experiments/search", {"max_results": 1000})]
            began = time.monotonic()
            own = len(_ask("runs/search", {"experiment_ids": [page], **RUNS}))
            one = time.monotonic() - began
            began = time.monotonic()
            all_ = len(_ask("runs/search", {"experiment_ids": experiments, **RUNS}))
            every = time.monotonic() - began
        finally:
            server.terminate()
            server.wait()
    yield ["`dagrpo ui` until it answers", f"{seconds:.1f}", "", "yes" if "starting" in shown() else ""]
    yield [f"MLflow's first page of the soak: {own} runs", f"{one:.1f}", "", ""]
    yield [f"the same of all {len(experiments)} experiments: {all_} runs", f"{every:.1f}", "", ""]


def _ask(question: str, content: dict[str, object]) -> list[dict[str, str]]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/api/2.0/mlflow/{question}",
        json.dumps(content).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as reply:
        answer: dict[str, list[dict[str, str]]] = json.load(reply)
    return answer.get(question.partition("/")[0], [])
