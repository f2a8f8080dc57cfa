"""Each file that a parameter names, with the stages that read it: an edit to one runs these again."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from docs.site.pages import parameters_page

from dagrpo.config.schema import Params, parse
from dagrpo.core.errors import UserError
from dagrpo.data.task import Task
from dagrpo.pipeline.dag import PlannedJob, planned_jobs
from dagrpo.pipeline.declaration import RAW
from dagrpo.pipeline.dvc.code import raw_file_at, raw_of_stage, write_links
from dagrpo.pipeline.raw_inputs import changed_raw, missing_raw
from dagrpo.pipeline.snakemake.checks import require_raw_files
from dagrpo.pipeline.stages import all_stages
from dagrpo.utils.files import sha256_of

EXPERIMENT = {"name": "e", "train": "gsm8k", "evaluate": ["gsm8k", "aime_2024"], "tasks": ["gsm8k", "aime_2024"]}
MIRROR = {"experiment": EXPERIMENT, "data": {"mirror": "copies"}}
SEARCH = {
    "experiment": {"name": "e", "train": "nq_hotpotqa", "evaluate": ["nq_hotpotqa"], "tasks": ["nq_hotpotqa"]},
    "rollout": {"tools": {"search": {"corpus": "corpus.parquet"}}},
    "difficulty": {"samples": 2},
}
TEACHER = {"loss": {"name": "on_policy_distillation"}, "teacher": {"source": "folder", "folder": "big"}}
JUDGE = {"judge": {"url": "http://127.0.0.1:1/v1", "model": "m", "rubric": "data/rubric.txt"}}
SCORES = {"reward_model": {"folder": "scores"}}
# key -> parameters, the file, the jobs that read it
TABLE: Mapping[str, tuple[Mapping[str, Any], str, set[str]]] = {
    "data.mirror": (MIRROR, "copies/gsm8k/train.jsonl", {"prepare gsm8k"}),
    "data.pass_rates": (
        {"experiment": EXPERIMENT, "data": {"pass_rates": "results/other/difficulty/train.parquet"}},
        "results/other/difficulty/train.parquet",
        {"prepare gsm8k", "prepare aime_2024"},
    ),
    "model.gguf": ({"model": {"source": "gguf", "gguf": "weights/tiny.gguf"}}, "weights/tiny.gguf", {"model"}),
    "rollout.tools.search.corpus": (SEARCH, "corpus.parquet", {"difficulty", "sample nq_hotpotqa", "train"}),
    "reward.components.judge.rubric": ({"reward": {"components": JUDGE}}, "data/rubric.txt", {"train"}),
    "reward.components.reward_model.folder": ({"reward": {"components": SCORES}}, "scores/manifest.json", {"train"}),
    "algorithm.teacher.folder": ({"algorithm": TEACHER}, "big/manifest.json", {"teacher"}),
}
# Texts that name no file of raw data. A new key that takes any text belongs here or above.
NAMES_NO_FILE = {
    "model": "repository revision fresh.tools",  # of the hub, at a commit
    "algorithm.teacher": "repository revision solution",
    "checkpoint": "format",
    "data.verifiers": "taskset",  # a module: code
    "rollout.agent": "environment reward_functions taskset command"  # code
    " address action_field observation_field keep_variables harness"
    " lock",  # of the programs beside an agent, which its folder records
    "rollout.tools": "mcp.command mcp.environment mcp.url mcp.functions python_functions.functions search.url",
    "rollout.chat": "calls",
    "reward": "verifier components.judge.url components.judge.model components.reported.name"
    " components.judge.answers",  # written by the stage itself
    "evaluation.scoring": "also",
    "runtime": "backend.python backend.source"  # where programs are: no part of what a stage makes
    " engine.servers teacher.servers reward_model.servers"
    " engine.weights_folder teacher.weights_folder reward_model.weights_folder",
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".state").mkdir()


def _readers(params: Params, file: str) -> set[str]:
    found = [job for job in planned_jobs(params, "e") if file in job.inputs.get(RAW, ())]
    return {" ".join([job.stage, *filter(None, [job.wildcards.get("task")])]) for job in found}


def _write(file: str, text: str = "{attempt}") -> Path:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(text)
    return Path(file)


def _job(params: Params, stage: str, task: str | None = None) -> PlannedJob:
    return next(j for j in planned_jobs(params, "e") if j.stage == stage and j.wildcards.get("task") in (None, task))


def _record(job: PlannedJob) -> dict[str, Any]:
    digests = {path: sha256_of(Path(path)) for path in job.inputs.get(RAW, ())}
    return {"experiment": "e", "inputs": digests, "outputs": {}, "params": {}}


@pytest.mark.parametrize(("values", "file", "jobs"), TABLE.values(), ids=TABLE)
def test_a_named_file_is_an_input_of_the_jobs_that_read_it_and_an_edit_is_seen_in_each(
    values: Mapping[str, Any], file: str, jobs: set[str]
) -> None:
    path, params = _write(file), parse(dict(values))
    assert _readers(params, file) == jobs
    for job in (job for job in planned_jobs(params, "e") if file in job.inputs.get(RAW, ())):
        assert file in map(raw_file_at, raw_of_stage(params, all_stages()[job.stage]))
        record = _record(job)
        assert not changed_raw(record, job.inputs.get(RAW, ()))
        path.touch()
        assert not changed_raw(record, job.inputs.get(RAW, ()))
        path.write_text("another {attempt}")
        os.utime(path, (0, 0))  # as a file that is moved here has it
        assert list(changed_raw(record, job.inputs.get(RAW, ()))) == [file]
        path.unlink()
        assert not changed_raw(record, job.inputs.get(RAW, ()))
        assert missing_raw(record["inputs"], "e") == [file]
        path.write_text("{attempt}")


def _text_keys() -> Iterator[str]:
    """Yield each key of the schema, those of every plug-in included, that takes any text or a list of texts."""
    for key, kind in re.findall(r"^\| `([^`]+)` \| ([^|]*) \|", parameters_page(), re.MULTILINE):
        if re.search(r"\bstring(?! matching)", kind) and not key.endswith(".requires"):
            yield key


def test_each_key_that_takes_any_text_is_known_to_name_a_file_or_none() -> None:
    named = {f"{section}.{key}" for section, keys in NAMES_NO_FILE.items() for key in keys.split()}
    assert set(_text_keys()) == named | {*TABLE}


@pytest.mark.parametrize(("values", "file", "jobs"), [row for key, row in TABLE.items() if key != "data.mirror"])
def test_a_file_that_is_missing_or_a_folder_is_refused_until_its_jobs_have_run(
    values: Mapping[str, Any], file: str, jobs: set[str]
) -> None:
    params = parse(dict(values))
    with pytest.raises(UserError, match=rf"^{re.escape(file)}, which [a-z_.]+ names, is missing: (put it|name a)"):
        require_raw_files(params, "e")
    Path(file).mkdir(parents=True)
    with pytest.raises(UserError, match="names, is a folder, not a file: "):
        require_raw_files(params, "e")
    for job in planned_jobs(params, "e"):
        _write(job.provenance, "{}")
    require_raw_files(params, "e")


def test_a_file_without_the_permission_to_read_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    values, file, _ = TABLE["model.gguf"]
    _write(file)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read any
    with pytest.raises(UserError, match=rf"^{file}, which model.gguf names, cannot be read by you .*: change its perm"):
        require_raw_files(parse(dict(values)), "e")


def test_files_that_have_come_since_a_job_ran_are_named() -> None:
    params = parse(MIRROR)
    _write("copies/gsm8k/train.parquet")
    record = _record(_job(params, "prepare", "gsm8k"))
    _write("copies/gsm8k/train.jsonl")  # read instead
    _write("copies/gsm8k/test.jsonl")
    changed = changed_raw(record, _job(params, "prepare", "gsm8k").inputs.get(RAW, ()))
    assert {name: was for name, (was, _) in changed.items()} == dict.fromkeys(
        ["copies/gsm8k/test.jsonl", "copies/gsm8k/train.jsonl"]
    )


def test_a_file_that_a_task_declares_is_an_input_of_its_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "counted = Task(name='counted', load=lambda params: None, verifier='gsm8k', files=('units.csv',))\n"
    _write("declaring_lab.py", f"from dagrpo.data.task import Task\n{lines}")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    tasks = {"train": "declaring_lab.counted", "evaluate": ["gsm8k"], "tasks": ["declaring_lab.counted", "gsm8k"]}
    params = parse({"experiment": {"name": "e", **tasks}})
    with pytest.raises(UserError, match=r"^units\.csv, which the task names, is missing: put it there"):
        require_raw_files(params, "e")
    _write("units.csv")
    assert _readers(params, "units.csv") == {"prepare declaring_lab.counted"}
    with pytest.raises(UserError, match=r"`files` is 'units\.csv', not a tuple of names"):
        Task(name="x", load=lambda params: None, verifier="gsm8k", files="units.csv")  # type: ignore[arg-type, return-value]


def test_a_file_of_an_installed_package_is_an_input_that_dvc_reaches_by_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    place = _write(".venv/lib/carries_a_model/x.gguf")
    _write(".venv/lib/carries_a_model/__init__.py", "")
    monkeypatch.syspath_prepend(str(Path(".venv/lib").absolute()))
    params = parse({"model": {"source": "gguf", "gguf": "package:carries_a_model/x.gguf"}})
    assert _readers(params, str(place)) == {"model"}
    write_links(params)
    (link,) = raw_of_stage(params, all_stages()["model"])
    assert Path(link).samefile(place)
    place.unlink()
    assert _readers(params, str(place)) == set()


PICTURES = ("copies/geo3k/train.jsonl", "images")


def _with_pictures(*pictures: str) -> tuple[Params, dict[str, Any]]:
    """Return parameters, and the record of a preparation whose rows name these pictures."""
    from dagrpo.data.reading import name_in_card, picture_digest

    task = {"train": "geo3k", "evaluate": ["geo3k"], "tasks": ["geo3k"]}
    params = parse({"experiment": {"name": "e", **task}, "data": {"mirror": "copies"}, "rollout": {}})
    rows = _write(PICTURES[0], "".join(f'{{"images": ["{picture}"]}}\n' for picture in pictures))
    digest = picture_digest(rows, PICTURES[1]).sha256
    raw = {name_in_card("geo3k/train.jsonl", PICTURES[1]): digest}
    card = _write("data/e/geo3k/card.json", "")
    card.write_text(f'{{"source": "s", "origin": "mirror", "raw": {{"{next(iter(raw))}": "{digest}"}}}}')
    record = {"experiment": "e", "inputs": {PICTURES[0]: sha256_of(rows)}, "outputs": {str(card): ""}}
    return params, record | {"params": {"data": {"mirror": "copies"}}}


def test_a_picture_that_rows_name_is_read_again_after_an_edit_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    from dagrpo.data.reading import picture_digest

    _write("copies/geo3k/pictures/1.png", "one")
    second = _write("copies/geo3k/pictures/2.png", "two")
    _, record = _with_pictures("pictures/1.png", "pictures/2.png")
    assert not changed_raw(record)
    read = list[Path]()

    def noting(place: Path, column: str) -> Any:
        read.append(place)
        return picture_digest(place, column)

    monkeypatch.setattr("dagrpo.pipeline.raw_inputs.picture_digest", noting)
    assert not changed_raw(record)
    assert read == []
    second.write_text("other")
    assert list(changed_raw(record)) == [f"a picture that {PICTURES[0]} names in {PICTURES[1]}"]
    second.unlink()
    assert len(changed_raw(record)) == 1
    second.write_text("two")
    assert not changed_raw(record)


def test_dvc_has_the_folder_of_a_task_with_pictures_as_its_dependency() -> None:
    _write("copies/geo3k/pictures/1.png", "one")
    params, _ = _with_pictures("pictures/1.png")
    assert raw_of_stage(params, all_stages()["prepare"]) == ["workflow/raw/copies/geo3k"]
    Path("copies/.dvc").mkdir()  # another repository
    assert raw_of_stage(params, all_stages()["prepare"]) == ["workflow/raw/copies+geo3k"]


def test_stages_list_the_raw_files_of_all_tasks_in_dvc_and_of_their_own_in_snakemake() -> None:
    params = parse(MIRROR)
    files: Sequence[str] = ["copies/aime/aime_2024.jsonl", "copies/gsm8k/test.jsonl", "copies/gsm8k/train.jsonl"]
    for file in files:
        _write(file)
    assert list(map(raw_file_at, raw_of_stage(params, all_stages()["prepare"]))) == files
    assert [_job(params, "prepare", task).inputs[RAW] for task in EXPERIMENT["tasks"]] == [
        tuple(files[1:]),
        tuple(files[:1]),
    ]
