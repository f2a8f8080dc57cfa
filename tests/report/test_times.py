"""The page of executions: its times, computed by hand, and that the report does not depend on it."""

from pathlib import Path

import pyarrow as pa

from dagrpo.report.times import FILE, SeedTimes, facts, label_of, parts_of, times_of_seeds, write_times_page
from dagrpo.utils.run_info import write_times
from dagrpo.utils.tables import write_parquet

FIRST = {"timing/update_seconds": 1.0, "timing/rollout_seconds": 2.0, "timing/tokens_per_second": 30.0}
SECOND = {"timing/update_seconds": 3.0, "timing/rollout_seconds": 4.0, "timing/tokens_per_second": 10.0}


def _runs(folder: Path, *seeds: int) -> list[Path]:
    """metrics.parquet of each seed; those of even seeds have times."""
    paths = [folder / f"results/seed_{seed}/metrics.parquet" for seed in seeds]
    for seed, path in zip(seeds, paths, strict=True):
        write_parquet(path, pa.table({"seed": [seed]}))
        if seed % 2 == 0:
            (folder / f"logs/seed_{seed}").mkdir(parents=True)
            write_times(folder / f"logs/seed_{seed}", path, [FIRST, SECOND | {"timing/record_seconds": 1.0}])
    return paths


def test_a_seed_that_was_trained_elsewhere_has_none(tmp_path: Path) -> None:
    found = times_of_seeds(_runs(tmp_path, 0, 1, 2), tmp_path / "logs")
    assert [each.seed for each in found] == ["0", "2"]
    assert found[0].seconds == 11.0
    assert found[0].mean("timing/record_seconds") == 1.0  # of the one step that has it
    assert found[0].mean("timing/update_mfu") is None
    times = [SeedTimes(seed="0", steps=[FIRST | {"timing/a_teacher_seconds": 1.0, "timing/weight_sync_seconds": 1.0}])]
    assert [label_of(name) for name in parts_of(times)] == ["rollout", "update", "weight sync", "a teacher"]


def test_the_page_says_where_the_time_went(tmp_path: Path) -> None:
    times = times_of_seeds(_runs(tmp_path, 0), tmp_path / "logs")
    path = write_times_page("<tiny>", times, tmp_path / "logs")
    assert path == tmp_path / "logs" / FILE
    text = path.read_text()
    assert "&lt;tiny&gt;: when and where its stages ran" in text
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    # 6 of 11 seconds are of rollouts, 3 of each step
    assert (
        '<th scope="row">rollout</th><td class="number">3.000</td><td class="number">54.5%</td><td class="number">4.000</td>'
        in text
    )
    assert dict(facts(times)) == {"Steps": "2", "Time in steps": "11 s", "Tokens per second": "20"}
    long = [SeedTimes(seed="0", steps=[FIRST | {"timing/update_mfu": 0.25, "timing/update_seconds": 5023.0}])]
    assert {"MFU of the update": "25.0%", "Time in steps": "1 h 24 min"}.items() <= dict(facts(long)).items()
