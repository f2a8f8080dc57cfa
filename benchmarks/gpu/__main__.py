"""The check on a GPU: `make gpu-check`, or where everything is installed

    python -m benchmarks.gpu [--out FOLDER] [--mirror FOLDER] [--experiment NAME] [--minutes 30]
    python -m benchmarks.gpu --rehearse --out FOLDER    # the same parts on a toy, without a GPU, in two minutes

Three parts, each with a share of the time: the tests that need a GPU (tests/gpu), the trainer on prime-rl's shapes, and a whole
experiment through the DAG. A part that fails or runs out of time says so, and the others go on. At the end there are a baseline in JSON
and tables for docs/benchmarks.md; a rehearsal writes both into its own folder. The experiment goes on from what is in FOLDER.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu import experiment, shapes, table

from dagrpo.doctor import needs
from dagrpo.errors import UserError
from dagrpo.execution.environment import environment
from dagrpo.files import write_json, write_text

ROOT = Path(__file__).parents[2]
PARTS = ("tests", "shapes", "experiment")
SHARE = {"tests": 5 / 30, "shapes": 5 / 30}  # of all the time; the experiment has what is left
SPARE = 20.0  # seconds, for what is written at the end
LEAST = 30.0  # seconds: a part that has fewer is not begun
ENOUGH = {"tests": 600.0, "shapes": 300.0, "experiment": 1200.0}  # seconds of a rehearsal


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the command line says."""

    out: Path
    baseline: Path
    docs: Path | None  # None: tables go only to the folder `out`
    begun: float  # when the time began, in seconds since 1970
    minutes: float
    experiment: str
    mirror: str | None
    parts: Sequence[str]
    rehearse: bool


class Check:
    """Runs the parts one after the other, and keeps what they measure."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._end = given.begun + 60 * given.minutes
        setting_up = time.time() - given.begun
        self.parts: dict[str, dict[str, Any]] = {
            "setting up": {"seconds": setting_up, "budget_seconds": setting_up, "status": "done"}
        }

    def run(self) -> dict[str, Any]:
        """Run every part that was asked for. Returns the baseline, which is what goes into the JSON file."""
        given, found = self._given, dict[str, Any]()
        work: Mapping[str, Callable[[float], tuple[str, Any]]] = {
            "tests": self._tests,
            "shapes": self._shapes,
            "experiment": self._experiment,
        }
        for name in given.parts:
            seconds, begun = self._budget(name), time.time()
            print(f"{name}: at most {seconds / 60:.1f} minutes", flush=True)
            try:
                status, found[name] = work[name](seconds) if seconds >= LEAST else ("not begun: no time was left", None)
            except Exception as error:  # noqa: BLE001  # the other parts go on, and what they measure is written
                status, found[name] = f"failed: {type(error).__name__}: {error}", None
            self.parts[name] = {"seconds": time.time() - begun, "budget_seconds": seconds, "status": status}
            print(f"{name}: {status}", flush=True)
            write(given, self._baseline(found))
        return self._baseline(found)

    def _baseline(self, found: Mapping[str, Any]) -> dict[str, Any]:
        return described(self._given) | {"budget_seconds": 60 * self._given.minutes, "parts": self.parts, **found}

    def _budget(self, name: str) -> float:
        if self._given.rehearse:
            return ENOUGH[name]
        left = self._end - SPARE - time.time()
        return max(0.0, min(left, SHARE[name] * 60 * self._given.minutes) if name in SHARE else left)

    def _tests(self, seconds: float) -> tuple[str, None]:
        command = [sys.executable, "-m", "pytest", "-rs", "-m", "gpu", "tests/gpu"]
        log = self._given.out / "tests.txt"
        code = bounded(command, log, seconds)
        lines = log.read_text(errors="replace").strip().splitlines()
        last = lines[-1].strip("= ") if lines else "nothing was said"
        if code is None:
            return f"stopped after {seconds / 60:.1f} minutes; see {log}", None
        none_ran = not self._given.rehearse and " passed" not in last
        return (f"failed: {last}; see {log}" if code or none_ran else last), None

    def _shapes(self, seconds: float) -> tuple[str, dict[str, Any]]:
        measured, end = dict[str, Any](), time.time() + seconds
        for name, case in shapes.CASES.items():
            measured[name] = {"title": case.title} | self._case(name, end - time.time())
        failed = [name for name, each in measured.items() if "error" in each]
        return (f"failed: {', '.join(failed)}" if failed else "done"), measured

    def _case(self, name: str, seconds: float) -> dict[str, Any]:
        toy = ["--toy"] if self._given.rehearse else []
        log = self._given.out / f"shape_{name}.txt"
        code = bounded([sys.executable, "-m", "benchmarks.gpu.shapes", "--case", name, *toy], log, max(seconds, 1.0))
        lines = log.read_text(errors="replace").strip().splitlines()
        if code == 0 and lines:
            told: dict[str, Any] = json.loads(lines[-1])
            return told
        return {
            "error": f"out of time, see {log}" if code is None else f"{lines[-1][:120] if lines else code}, see {log}"
        }

    def _experiment(self, seconds: float) -> tuple[str, dict[str, Any]]:
        given = self._given
        params = experiment.params_of(given.experiment, given.mirror, toy=given.rehearse)
        folder = given.out / "experiment"
        status = experiment.run(params, folder, seconds)
        return status, experiment.result(folder, params.experiment.name)


def write(given: Given, baseline: Mapping[str, Any]) -> str:
    """Write the baseline and its tables as far as they are measured. Returns the tables."""
    write_json(given.baseline, baseline)
    text = table.markdown(baseline)
    write_text(given.out / "table.md", f"{text}\n")
    if given.docs is not None:
        table.put_into(given.docs, text)
    return text


def bounded(command: Sequence[str], log: Path, seconds: float) -> int | None:
    """The exit code of a command of the project, whose output goes to `log`; None: it was killed when its time was over."""
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def described(given: Given) -> dict[str, Any]:
    """The machine, the versions and the commit."""
    gpus = needs.cards()
    first = gpus[0] if gpus else needs.Card("0", "no GPU (a rehearsal)", 0, "none", (0, 0))
    versions = {key: version for key, version in environment(on_gpu=True).items() if key not in {"machine", "device"}}
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "rehearsal": given.rehearse,
        "machine": {
            "device": first.name,
            "devices": len(gpus),
            "mebibytes": first.mebibytes,
            "driver": first.driver,
            "processors": os.cpu_count(),
        },
        "versions": versions,
        "commit": commit,
    }


def parsed(arguments: Sequence[str]) -> Given:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rehearse", action="store_true", help="on a toy, without a GPU")
    parser.add_argument("--out", type=Path, default=ROOT / ".gpu-check", help="folder of all that is made")
    parser.add_argument(
        "--baseline", type=Path, help="JSON file; docs/gpu_baseline.json, of a rehearsal FOLDER/baseline.json"
    )
    parser.add_argument("--experiment", default=experiment.EXPERIMENT, help="a preset, such as one of a larger model")
    parser.add_argument("--mirror", default=os.environ.get("DAGRPO_DATA"), help="data.mirror; by itself DAGRPO_DATA")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--begun", type=float, default=time.time(), help="when the time began, in seconds since 1970")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    told = parser.parse_args(arguments)
    usual = told.out / "baseline.json" if told.rehearse else ROOT / "docs/gpu_baseline.json"
    return Given(
        out=told.out.absolute(),
        baseline=told.baseline or usual,
        docs=None if told.rehearse or told.baseline else ROOT / "docs/benchmarks.md",
        begun=told.begun,
        minutes=told.minutes,
        experiment=told.experiment,
        mirror=None if told.mirror is None else str(Path(told.mirror).absolute()),
        parts=told.parts,
        rehearse=told.rehearse,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for. SystemExit with 1: a part did not end well; with a sentence: it cannot run here."""
    given = parsed(sys.argv[1:] if arguments is None else arguments)
    missing = [] if given.rehearse else [each for each in needs.of_check(ROOT, mirror=given.mirror) if each.is_trouble]
    if missing:
        raise SystemExit("\n".join(f"missing: {each.name}: {each.found}; {each.remedy}" for each in missing))
    given.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what it has started ends with it
    check = Check(given)
    try:
        text = write(given, check.run())
    except UserError as error:
        raise SystemExit(str(error)) from None
    print(f"\n{text}\n\n{given.baseline}\n{given.docs or given.out / 'table.md'}")
    if any(part["status"].startswith(("failed", "stopped", "not begun")) for part in check.parts.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
