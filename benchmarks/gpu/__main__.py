"""The check on a GPU: `make gpu-check`, or where everything is installed

    python -m benchmarks.gpu [--out FOLDER] [--mirror FOLDER] [--experiment NAME] [--minutes 30]
    python -m benchmarks.gpu --rehearse --out FOLDER    # the same parts on a toy, without a GPU, in five minutes

Parts, each with a share of the time: the tests that need a GPU (tests/gpu), the trainer on prime-rl's shapes, where there are several GPUs
what they do together, and a whole experiment through the DAG. `--parts step` times steps of GSM8K with Qwen2.5-0.5B instead. A part that
fails or runs out of time says so, and the others go on. After each part, and each shape, a baseline in JSON and tables for
docs/benchmarks.md are written; a rehearsal writes both into its own folder. The experiment goes on from what is in FOLDER.
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
from pathlib import Path
from typing import Any

from benchmarks.gpu import baseline as baselines
from benchmarks.gpu import experiment, shapes

from dagrpo.core.errors import UserError
from dagrpo.utils.devices import visible_devices
from dagrpo_doctor import gpu_requirements

ROOT = Path(__file__).parents[2]
USUAL = ("tests", "shapes", "several", "experiment")
PARTS = (*USUAL, "step")
SHARE = {"tests": 5 / 30, "shapes": 5 / 30, "several": 4 / 30}  # of all the time; the experiment has what is left
SPARE = 20.0  # seconds, for what is written at the end
LEAST = 30.0  # seconds: a part that has fewer is not begun
ENOUGH = {
    "tests": 600.0,
    "shapes": 300.0,
    "several": 900.0,
    "experiment": 1200.0,
    "step": 1200.0,
}  # seconds of a rehearsal


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
        self._described = baselines.described(rehearse=given.rehearse)
        self._found = baselines.before(given.baseline, self._described, given.parts)  # what each part has measured
        earlier = self._found.pop("parts", {})
        self._end = given.begun + 60 * given.minutes
        setting_up = time.time() - given.begun
        self.parts: dict[str, dict[str, Any]] = {
            "setting up": {"seconds": setting_up, "budget_seconds": setting_up, "status": "done"},
            **earlier,
        }

    def run(self) -> None:
        """Run every part that was asked for, and write what is measured after each."""
        given, found = self._given, self._found
        work: Mapping[str, Callable[[float], str]] = {
            "tests": self._tests,
            "shapes": self._shapes,
            "several": self._several,
            "experiment": self._experiment,
            "step": self._step,
        }
        for name in given.parts:
            seconds, begun = self._budget(name), time.time()
            print(f"{name}: at most {seconds / 60:.1f} minutes", flush=True)
            try:
                status = work[name](seconds) if seconds >= LEAST else "not begun: no time was left"
            except Exception as error:  # noqa: BLE001  # the other parts go on, and what was measured is written
                status = f"failed: {type(error).__name__}: {error}"
            self.parts[name] = {"seconds": time.time() - begun, "budget_seconds": seconds, "status": status}
            print(f"{name}: {status}", flush=True)
            found.setdefault(name, None)
            self.write()

    def _baseline(self) -> dict[str, Any]:
        return {**self._described, "budget_seconds": 60 * self._given.minutes, "parts": self.parts, **self._found}

    def write(self) -> str:
        """Write the baseline and its tables as far as they are measured. Returns the tables."""
        given = self._given
        return baselines.write(self._baseline(), given.baseline, given.out / "table.md", given.docs)

    def _budget(self, name: str) -> float:
        if self._given.rehearse:
            return ENOUGH[name]
        left = self._end - SPARE - time.time()
        return max(0.0, min(left, SHARE[name] * 60 * self._given.minutes) if name in SHARE else left)

    def _tests(self, seconds: float) -> str:
        command = [sys.executable, "-m", "pytest", "-rs", "-m", "gpu", "tests/gpu"]
        log = self._given.out / "tests.txt"
        code = bounded(command, log, seconds)
        lines = log.read_text(errors="replace").strip().splitlines()
        last = lines[-1].strip("= ") if lines else "nothing was said"
        if code is None:
            return f"stopped after {seconds / 60:.1f} minutes; see {log}"
        none_ran = not self._given.rehearse and " passed" not in last
        return f"failed: {last}; see {log}" if code or none_ran else last

    def _shapes(self, seconds: float) -> str:
        measured: dict[str, Any] = self._found.setdefault("shapes", {})
        end, memory = time.time() + seconds, baselines.smallest_memory()
        for name, case in shapes.CASES.items():
            too_large = None if self._given.rehearse else case.too_large_for(memory)
            found = {"left_out": too_large} if too_large else self._case(name, end - time.time())
            measured[name] = {"title": case.title} | found
            self.write()
        failed = [name for name, each in measured.items() if "error" in each]
        left_out = [name for name, each in measured.items() if "left_out" in each]
        if failed:
            return f"failed: {', '.join(failed)}"
        return f"done; too large for this card: {', '.join(left_out)}" if left_out else "done"

    def _several(self, seconds: float) -> str:
        given, count = self._given, len(visible_devices())
        if count < 2 and not given.rehearse:
            return f"left out: two GPUs are needed, and there is {count or 'none'}"
        end, log = time.time() + seconds, given.out / "several.txt"
        command = [sys.executable, "-m", "dagrpo.pipeline.launch", str(max(count, 2)), "benchmarks/gpu/several.py"]
        code = bounded([*command, *(["--toy"] if given.rehearse else [])], log, seconds)
        if code != 0:
            return f"failed: {'out of time' if code is None else 'processes that share a policy'}; see {log}"
        found = self._found["several"] = printed(log)
        for name in experiment.TOGETHER:
            self.write()
            params = experiment.params_together(name, on_gpu=not given.rehearse)
            found[name] = experiment.run(
                params, given.out / name, max(end - time.time(), 1.0), experiment.trained(params)
            )
        bad = [name for name in experiment.TOGETHER if found[name] != "done"]
        return f"failed: {', '.join(f'{name}: {found[name]}' for name in bad)}" if bad else "done"

    def _case(self, name: str, seconds: float) -> dict[str, Any]:
        toy = ["--toy"] if self._given.rehearse else []
        log = self._given.out / f"shape_{name}.txt"
        code = bounded([sys.executable, "-m", "benchmarks.gpu.shapes", "--case", name, *toy], log, max(seconds, 1.0))
        if code == 0:
            return printed(log)
        lines = log.read_text(errors="replace").strip().splitlines()
        return {
            "error": f"out of time, see {log}" if code is None else f"{lines[-1][:120] if lines else code}, see {log}"
        }

    def _experiment(self, seconds: float) -> str:
        given = self._given
        params = experiment.params_of(given.experiment, given.mirror, toy=given.rehearse)
        folder = given.out / "experiment"
        try:
            return experiment.run(params, folder, seconds)
        finally:
            self._found["experiment"] = experiment.result(folder, params.experiment.name)

    def _step(self, seconds: float) -> str:
        given, folder = self._given, self._given.out / "step"
        params = experiment.params_of_step(given.mirror)
        status = experiment.run(params, folder, seconds, experiment.trained(params))
        self._found["step"] = {"seconds": experiment.seconds_of_step(folder, params)}
        return status


def bounded(command: Sequence[str], log: Path, seconds: float) -> int | None:
    """The exit code of a command of the project, whose output goes to `log`; None: it was killed when its time was over."""
    own = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=own, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def printed(log: Path) -> dict[str, Any]:
    """Return the last JSON object in a log: libraries may warn after it. ValueError: there is none."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("{")]
    if not lines:
        raise ValueError(f"{log} has no line of JSON")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


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
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=USUAL)
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
    missing = (
        []
        if given.rehearse
        else [each for each in gpu_requirements.check_all(ROOT, mirror=given.mirror) if each.is_trouble]
    )
    if missing:
        raise SystemExit("\n".join(f"missing: {each.name}: {each.detail}; {each.remedy}" for each in missing))
    given.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what it has started ends with it
    check = Check(given)
    try:
        check.run()
        text = check.write()
    except UserError as error:
        raise SystemExit(str(error)) from None
    print(f"\n{text}\n\n{given.baseline}\n{given.docs or given.out / 'table.md'}")
    if any(part["status"].startswith(("failed", "stopped", "not begun")) for part in check.parts.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
