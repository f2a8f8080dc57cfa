"""Private parts of Snakemake that the pipeline uses, tested with 9.27.1.

After DVC has restored an output, Snakemake has nothing to do only if its own records say so, and it has no interface to them.
tests/pipeline/test_snakemake_private.py fails if the format of a record, the name of its file, or an option changes.
"""

import binascii
import sys
from argparse import Namespace
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, suppress
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

from dagrpo.core.errors import UserError
from dagrpo.utils.files import read_object, read_text, write_json
from dagrpo.utils.provenance import TOPS

RECORDS = Path(".snakemake/metadata")  # a file of JSON for each output: how it was made
UNFINISHED = Path(".snakemake/incomplete")  # a file for each output of a job that has begun and not ended
LOCKS = Path(".snakemake/locks")
FORMAT = 6  # of a record
LONGEST_NAME = 254  # characters of a file's name; the rest of a longer one is in folders
LOCAL = ("local", "dryrun", "touch")  # executors
# Options that ask for information or maintenance: no job is run.
WITHOUT_JOBS = (
    "archive",
    "cleanup_metadata",
    "cleanup_shadow",
    "containerize",
    "d3dag",
    "dag",
    "delete_all_output",
    "delete_temp_output",
    "detailed_summary",
    "dryrun",
    "export_cwl",
    "filegraph",
    "generate_unit_tests",
    "lint",
    "list_changes",
    "list_rules",
    "list_target_rules",
    "list_untracked",
    "print_compilation",
    "report",
    "rulegraph",
    "summary",
    "unlock",
)


def recorded_job(output: Path) -> str | None:
    """Return the name of the parameters' file in Snakemake's record of an output; None without a record."""
    params = _record(output).get("params") or [""]
    return Path(str(params[0]).strip("'")).stem or None


def recorded_digests(output: Path) -> dict[str, str] | None:
    """Return the sha256 of each input by Snakemake's record of an output; None without a record."""
    digests = _record(output).get("input_checksums")
    if digests is None:
        return None
    return {str(path): str(digest).removeprefix("sha256:") for path, digest in digests.items()}


def recorded_inputs(output: Path) -> list[str]:
    """List the inputs in Snakemake's record of an output; [] without them, which Snakemake then does not compare."""
    return [str(path) for path in _record(output).get("input") or ()]


def is_unfinished(output: Path) -> bool:
    """Return True if the job of an output has begun and not ended: its run was killed, or is at work."""
    return _file(UNFINISHED, output).exists()


def record_finished(output: Path, stage: str, job_file: str, digests: Mapping[str, str]) -> None:
    """Record for Snakemake that an output is made with a file of parameters, from inputs with these sha256.

    Without the set of inputs, command and environment, which Snakemake then does not compare: the parameters' file names them.
    """
    moment = output.stat().st_mtime
    record = {
        "record_format_version": FORMAT,
        "incomplete": False,
        "rule": stage,
        "params": [repr(job_file)],
        "input_checksums": {path: f"sha256:{digest}" for path, digest in digests.items()},
        "starttime": moment,
        "endtime": moment,
    }
    UNFINISHED.mkdir(parents=True, exist_ok=True)  # else Snakemake takes the records for those of an older version
    write_json(_file(RECORDS, output), record)
    _file(UNFINISHED, output).unlink(missing_ok=True)


def record_unfinished(output: Path) -> None:
    """Record for Snakemake that the job of an output has not ended, so that it runs again."""
    write_json(_file(UNFINISHED, output), {"external_jobid": None})


def unfinished_outputs() -> Iterator[str]:
    """Yield the outputs of jobs that have begun and not ended."""
    for marker in sorted(UNFINISHED.glob("*")):
        try:
            yield urlsafe_b64decode(marker.name).decode()
        except (binascii.Error, UnicodeDecodeError):  # a part of a longer name
            continue


def locks_of(experiment: str) -> list[Path]:
    """List Snakemake's own locks that name files of an experiment: a killed run leaves them."""
    starts, found = tuple(f"{top}/{experiment}/" for top in TOPS), list[Path]()
    for lock in sorted(LOCKS.glob("*.lock")):
        with suppress(UserError):  # its owner has just ended
            if any(line.startswith(starts) for line in read_text(lock, "").splitlines()):
                found.append(lock)
    return found


def _record(output: Path) -> dict[str, Any]:
    try:
        return read_object(_file(RECORDS, output))
    except UserError:  # missing or damaged
        return {}


def _file(folder: Path, output: Path) -> Path:
    name = urlsafe_b64encode(str(output).encode()).decode()
    parts = [name[start : start + LONGEST_NAME] for start in range(0, len(name), LONGEST_NAME)]
    return folder.joinpath(*(f"@{part}" for part in parts[:-1]), parts[-1])


def call_around_the_jobs(workflow: Any, *actions: Callable[[], None]) -> None:
    """Call the first action at the start, the second after success, the third after an error: also of a module.

    Snakemake leaves out onstart, onsuccess and onerror of a module; those of the user's Snakefile, after it, replace these.
    """
    if not workflow.modifier.is_main_snakefile():
        names = ("_onstart", "_onsuccess", "_onerror")
        for name, action in zip(names, actions, strict=True):
            setattr(workflow, name, lambda log, action=action: action())


def run_in_slurm(workflow: Any) -> str:
    """Return the name that the SLURM executor gives to the jobs of this run; "" for another executor."""
    return str(getattr(getattr(workflow.scheduler, "_executor", None), "run_uuid", ""))


def executor_name() -> str:
    """Return the name of Snakemake's executor, as the command line and the profiles have it; "" where its API is used instead."""
    given = _with_profiles()
    return "" if given is None else given.executor or "local"


def leave_threads_to_jobs(workflow: Any) -> None:
    """Drop the limit that --cores of a profile sets: it is of this machine, and jobs may run on larger ones."""
    given = options()
    if given is not None and given.cores is None and executor_name() not in LOCAL:
        workflow.resource_settings.cores = workflow.global_resources["_cores"] = None


def stages_of_a_job(stage: str) -> int:
    """Return how many stages may share a job with this one, itself included, as the profiles group them: their minutes add up."""
    given = _with_profiles()
    groups = [] if given is None else list((given.groups or {}).items())
    own = dict(groups).get(stage)
    return sum(group == own for _, group in groups) if own is not None else 1


def retries() -> int:
    """Return how often a job that fails is submitted again."""
    given = _with_profiles()
    return 0 if given is None else int(given.retries or 0)


def executor_settings() -> Any:
    """Return the settings of the executor that `executor_name` names."""
    from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

    return ExecutorPluginRegistry().get_plugin(executor_name()).get_settings(_with_profiles())


@lru_cache
def _with_profiles() -> Namespace | None:
    from snakemake.cli import parse_args

    if options() is None:
        return None
    with redirect_stderr(StringIO()):  # it names the profiles
        return parse_args(sys.argv[1:])[1]  # type: ignore[no-any-return]


@lru_cache
def options() -> Namespace | None:
    """Parse Snakemake's command line; None if its API is used instead."""
    from snakemake.cli import get_argument_parser

    program = Path(sys.argv[0])
    if program.name != "snakemake" and program.parts[-2:] != ("snakemake", "__main__.py"):  # python -m snakemake
        return None
    return get_argument_parser().parse_args(sys.argv[1:])  # type: ignore[no-any-return]


def runs_jobs() -> bool:
    """Return True if this is a `snakemake` command that may run jobs."""
    given = options()
    return given is not None and not any(getattr(given, name, None) for name in WITHOUT_JOBS)
