"""The check on a GPU, as far as it needs none: formulas, table, baseline, what is refused, and a rehearsal of all of it."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from benchmarks.gpu import __main__ as check
from benchmarks.gpu import experiment, shapes, table, targets
from tests.everyday import everyday
from transformers import Qwen3Config, Qwen3ForCausalLM

from dagrpo.config.schema import Params
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.trainer.metrics.throughput import Arithmetic
from dagrpo.utils.files import read_json, write_json
from dagrpo.utils.run_info import write_times
from dagrpo.utils.tables import write_parquet
from dagrpo_doctor import gpu_requirements, gpus
from dagrpo_doctor.finding import Finding

ROOT = Path(__file__).parents[2]
QWEN3 = Arithmetic(parameters=596_049_920, attention=28 * 16 * 128)
SCORE = {"value": 0.1, "low": 0.05, "high": 0.2}
MACHINE = {"device": "NVIDIA H100 80GB HBM3", "mebibytes": 81_559, "driver": "570.1", "processors": 16}
CASE = {
    "title": "RL update, 1 x 16,384, packed",
    "tokens_per_second": 23_800.0,
    "mfu": 0.2217,
    "gibibytes_allocated": 11.04,
    "gibibytes_reserved": 12.26,
    "peer_tokens_per_second": 11_900,
    "peer_gibibytes": 12.5,
}


@pytest.mark.parametrize(
    ("length", "tokens_per_second", "percent"),
    [(16_384, 11_900, 11.1), (65_536, 10_150, 26.8), (16_384, 25_490, 23.7), (8_192, 26_010, 16.8)],
)
def test_the_formula_gives_the_figures_that_prime_rl_has_committed(
    length: int, tokens_per_second: float, percent: float
) -> None:
    """Of Qwen3-0.6B on one H100: 9.21 GFLOPs for a token among 16,384."""
    assert 100 * shapes.mfu(QWEN3, [length], tokens_per_second) == pytest.approx(percent, abs=0.06)


def test_the_fresh_model_has_the_shape_of_qwen3_and_a_token_costs_what_is_computed_by_hand() -> None:
    """6 x 596,049,920 + 6 x 28 x 2,048 x 16,384"""
    with torch.device("meta"):
        arithmetic = Arithmetic.of(Qwen3ForCausalLM(Qwen3Config(**shapes.QWEN3_0_6B)))
    assert (arithmetic.parameters, arithmetic.attention) == (QWEN3.parameters, QWEN3.attention)
    assert QWEN3.update([16_384]) / 16_384 == 3_576_299_520 + 5_637_144_576


@pytest.mark.parametrize("name", everyday([*shapes.CASES][:2], shapes.CASES))
def test_every_shape_is_computed_on_a_toy(name: str) -> None:
    try:
        found = shapes.measured(shapes.CASES[name], toy=True)
    finally:
        torch.use_deterministic_algorithms(False)
    case = shapes.CASES[name]
    share = 9 / 16 if case.spread else 1  # an eighth, two eighths and so on of the longest: nine sixteenths on average
    assert found.tokens == share * case.sequences * case.length // 256
    assert found.seconds > 0
    assert found.tokens_per_second == pytest.approx(found.tokens / found.seconds)


def test_the_check_refuses_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "cards", list)
    monkeypatch.setattr(gpu_requirements, "hub", lambda: Finding(name="GSM8K", detail="there"))
    with pytest.raises(SystemExit, match="missing: GPU: nvidia-smi lists none"):
        check.main([])


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results/named"
    for seed, shift in ((0, 0.0), (1, 0.2)):
        trained = {name: value + shift for name, value in SCORE.items()}
        for policy, score in (("base", SCORE), ("trained", trained)):
            file = folder / f"runs/seed_{seed}/eval/gsm8k/{policy}/scores.json"
            file.parent.mkdir(parents=True)
            write_json(file, {"greedy": score, "mean_at_k": score})
        metrics = folder / f"runs/seed_{seed}/metrics.parquet"
        write_parquet(metrics, pa.table({"step": [1, 2, 3]}))
        steps = [{"timing/update_seconds": seconds, "timing/update_mfu": 0.25} for seconds in (9.0, 1.0, 3.0)]
        write_times(tmp_path / f"logs/named/seed_{seed}", metrics, steps)
    (folder / "runs/seed_2/eval/gsm8k/base").mkdir(parents=True)  # of a seed that was not finished
    (folder / "report").mkdir()
    numbers = {"base": 0.1, "trained": 0.2, "difference": 0.1, "interval": "+0.010 to +0.190"}
    write_json(folder / "report/metrics.json", {"gsm8k": numbers, "mean reward": 0.4})
    return tmp_path


def test_scores_with_intervals_and_medians_of_steps_are_read_from_the_results(results: Path) -> None:
    found = experiment.result(results, "named")
    assert [(each["seed"], each["metric"]) for each in found["scores"]] == [
        (seed, metric) for seed in "01" for metric in ("greedy", "mean_at_k")
    ]
    assert found["scores"][2]["trained"] == pytest.approx((0.3, 0.25, 0.4))
    assert found["steps"] == {"update_seconds": 2.0, "update_mfu": 0.25}, "without the first step of each seed"
    assert experiment.result(results, "another") == {
        "experiment": "another",
        "scores": [],
        "over_seeds": {},
        "steps": {},
    }


def _baseline(results: Path) -> dict[str, Any]:
    part = {"seconds": 90.0, "budget_seconds": 300.0, "status": "done"}
    return {
        "date": "2026-11-23",
        "machine": MACHINE,
        "versions": {"torch": "2.14.1"},
        "commit": "abcdef",
        "budget_seconds": 1800.0,
        "parts": {"tests": part | {"status": "5 passed | 1 skipped"}, "shapes": part},
        "shapes": {"rl": CASE, "sft": {"title": "SFT", "error": "CUDA out of memory"}},
        "experiment": experiment.result(results, "named"),
    }


def test_the_table_is_the_one_written_by_hand(results: Path) -> None:
    text = table.markdown(json.loads(json.dumps(_baseline(results))))
    for line in (
        "NVIDIA H100 80GB HBM3, driver 570.1; torch 2.14.1; commit abcdef, 2026-11-23.",
        "| tests | 1.5 | 5.0 | 5 passed / 1 skipped |",
        "| all | 3.0 | 30.0 | |",
        "| RL update, 1 x 16,384, packed | 23,800 | 22.2% | 11.0 (12.3) | 11,900, 12.5 | 2.00 |",
        "| SFT | CUDA out of memory | | | | |",
        "| gsm8k | 1 | greedy | 10.0% (5.0% to 20.0%) | 30.0% (25.0% to 40.0%) |",
        "| gsm8k | all | greedy | 10.0% | 20.0%, +0.100 (+0.010 to +0.190) |",
        "| update_seconds | 2.000 |",
        "| update_mfu | 25.0% |",
    ):
        assert line in text.splitlines()


def test_the_table_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.put_into(document, "first")
    assert document.read_text() == f"before\n{table.BEGIN}\n\nfirst\n\n{table.END}\nafter\n"


def test_the_time_is_divided_and_the_experiment_has_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    given = check.parsed(["--out", str(tmp_path), "--begun", "700", "--minutes", "30"])
    started = check.Check(given)
    assert started.parts["setting up"]["seconds"] == 300
    budgets = [started._budget(name) for name in check.USUAL]
    assert budgets == [300, 300, 240, 1_480]  # 30 minutes, less 5, less what is spare
    named = ["--baseline", str(tmp_path / "baseline.json"), "--begun", "-760", "--minutes", "30"]
    late = check.Check(check.parsed(["--out", str(tmp_path), *named]))
    assert [late._budget(name) for name in check.USUAL] == [20] * 4
    late.run()
    assert {part["status"] for part in late.parts.values()} == {"done", "not begun: no time was left"}


def test_a_part_that_fails_is_told_and_what_the_others_measured_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = check.USUAL[1]

    def fails(self: check.Check, seconds: float) -> str:
        raise subprocess.CalledProcessError(128, ["git", "ls-files"])

    for name in check.USUAL:
        monkeypatch.setattr(check.Check, f"_{name}", fails if name == broken else lambda self, seconds: "done")
    with pytest.raises(SystemExit) as ended:
        check.main(["--rehearse", "--out", str(tmp_path)])
    assert ended.value.code == 1
    statuses = {name: part["status"] for name, part in read_json(tmp_path / "baseline.json")["parts"].items()}
    assert statuses.pop(broken).startswith("failed: CalledProcessError: ")
    assert set(statuses.values()) == {"done"}


@pytest.mark.parametrize(("says", "fails"), [("21 skipped in 3.00s", True), ("5 passed, 16 skipped in 9.00s", False)])
def test_tests_that_were_all_skipped_did_not_pass(
    says: str, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "bounded", lambda command, log, seconds: log.write_text(says) and 0)
    status = check.Check(check.parsed(["--out", str(tmp_path)]))._tests(60.0)
    assert status.startswith("failed: ") is fails


def test_a_part_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    assert check.bounded([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log", 1.0) is None


def _check(folder: Path, *more: str) -> check.Check:
    return check.Check(check.parsed(["--out", str(folder), "--baseline", str(folder / "baseline.json"), *more]))


@pytest.mark.parametrize(("mebibytes", "left_out"), [(24_564, {"rl_short", "sft_kept"}), (81_559, set[str]())])
def test_a_shape_that_is_too_large_for_the_card_is_left_out_and_nothing_failed(
    mebibytes: int, left_out: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "cards", lambda: [gpus.Card("0", "a card", mebibytes, "580.1", (9, 0))])
    monkeypatch.setattr(check.Check, "_case", lambda self, name, seconds: dict(CASE))
    started = _check(tmp_path, "--parts", "shapes")
    started.run()
    found = read_json(tmp_path / "baseline.json")["shapes"]
    assert {name for name, case in found.items() if "left_out" in case} == left_out
    assert started.parts["shapes"]["status"].startswith("done")
    assert ("it takes about 53 GiB, and this card has 24 |" in (tmp_path / "table.md").read_text()) == bool(left_out)


def test_targets_stand_beside_what_was_measured() -> None:
    fast = {"machine": MACHINE, "shapes": {"rl": CASE | {"tokens_per_second": 25_001.0}}, "step": {"seconds": 31.0}}
    slow = {"machine": MACHINE | {"device": "NVIDIA L40S"}, "shapes": {"rl": CASE}}
    for baseline, cells in (
        (fast, ["25,001 tokens/s | yes |", "11.0 GiB | yes |", "31.0 s | no |"]),
        (slow, ["23,800 tokens/s | of an H100 |", "11.0 GiB | of an H100 |", f"not measured: `{targets.STEP}` |  |"]),
    ):
        rows = list(targets.rows(baseline))[2:]
        assert [row.endswith(f"| {cell}") for row, cell in zip(rows, cells, strict=True)] == [True] * 3


def test_one_gpu_leaves_out_what_several_do_together_and_two_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def counted(command: list[str], log: Path, seconds: float) -> int:
        commands.append(command)
        log.write_text('{"processes": 2, "all_reduce_bytes_per_second": 3.5e11}\na warning of NCCL\n')
        return 0

    monkeypatch.setattr(check, "bounded", counted)
    trained: list[Runtime] = []

    def run(params: Params, *rest: object) -> str:
        trained.append(params.runtime)
        return "done"

    monkeypatch.setattr(experiment, "run", run)
    for visible, status in (("0", "left out: two GPUs are needed, and there is 1"), ("0,1", "done")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        started = _check(tmp_path, "--parts", "several")
        started.run()
        assert started.parts["several"]["status"] == status
    assert [command[3] for command in commands] == ["2"]
    found = [
        (each.training.processes, each.engine.replicas, each.engine.own_gpus, each.engine.tensor_parallel)
        for each in trained
    ]
    assert found == [(2, 2, False, 1), (1, 1, True, 1), (1, 1, False, 2)]
    assert "| all-reduce, GB/s of each link | 350.0 |" in (tmp_path / "table.md").read_text()


@pytest.mark.nightly
def test_processes_share_a_policy_and_have_the_logprobs_of_a_whole_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dagrpo.pipeline.launch", "2", "benchmarks/gpu/several.py", "--toy"]
    assert check.bounded(command, tmp_path / "log", 200.0) == 0, (tmp_path / "log").read_text()
    found = check.printed(tmp_path / "log")
    assert (found["processes"], found["gradient_norm"] > 0) == (2, True)


@pytest.mark.nightly
@pytest.mark.dag
@pytest.mark.server
def test_all_parts_are_rehearsed_without_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2400, check=False)
    output = tmp_path / "experiment/output.txt"
    assert done.returncode == 0, done.stdout[-3000:] + (output.read_text()[-3000:] if output.is_file() else "")
    baseline = read_json(tmp_path / "baseline.json")
    assert baseline["rehearsal"]
    assert baseline["parts"].keys() == {"setting up", *check.USUAL}
    assert "skipped" in baseline["parts"]["tests"]["status"] or "passed" in baseline["parts"]["tests"]["status"]
    assert all("error" not in case for case in baseline["shapes"].values())
    assert {score["metric"] for score in baseline["experiment"]["scores"]} == {"greedy", "mean_at_k"}
    assert baseline["experiment"]["steps"]["update_seconds"] > 0
    assert (tmp_path / "table.md").read_text().strip() in done.stdout
