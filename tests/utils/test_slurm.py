"""What SLURM's queue tells, by programs that print what SLURM 22.05 prints."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dagrpo.utils import slurm

Answers = Callable[..., None]


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Puts a program of SLURM on PATH, with its output, messages and exit code."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def program(name: str, output: str, messages: str = "", code: int = 0) -> None:
        lines = [
            f"#!{sys.executable}",
            "import sys",
            f"sys.stdout.write({output!r})",
            f"sys.stderr.write({messages!r})",
            f"sys.exit({code})",
        ]
        (tmp_path / name).write_text("\n".join(lines))
        (tmp_path / name).chmod(0o755)

    return program


def test_a_job_has_ended_when_the_queue_says_so_or_has_forgotten_it(answers: Answers) -> None:
    answers("squeue", "14|RUNNING|rule_train_wildcards_tiny_0\n")
    assert not slurm.has_ended("14")
    answers("squeue", "14|COMPLETING|rule_train_wildcards_tiny_0\n")
    assert not slurm.has_ended("14")
    answers("squeue", "14|TIMEOUT|rule_train_wildcards_tiny_0\n")
    assert slurm.has_ended("14")
    answers("squeue", "", "slurm_load_jobs error: Invalid job id specified\n", 1)
    assert slurm.has_ended("14")


def test_no_job_has_ended_while_slurm_does_not_answer(answers: Answers) -> None:
    assert not slurm.has_ended("14")
    assert slurm.jobs_named("a-run") is None
    answers("squeue", "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", 1)
    assert not slurm.has_ended("14")
    assert slurm.jobs_named("a-run") is None


def test_the_jobs_of_a_run_are_those_that_wait_or_run(answers: Answers) -> None:
    answers("squeue", "3|PENDING|rule_a|b\n2_1|RUNNING|rule_train\n1|FAILED|rule_model\n")
    found = slurm.jobs_named("a-run")
    assert found is not None
    assert [(job.number, job.comment) for job in found] == [("3", "rule_a|b"), ("2_1", "rule_train")]


def test_accounts_and_gpus_are_there_if_slurm_says_so(answers: Answers) -> None:
    answers("sacct", "", "Slurm accounting storage is disabled\n", 1)
    answers("sinfo", "(null)\n")
    assert not slurm.has_accounting()
    assert slurm.has_gpus() is False
    answers("sacct", "")
    assert slurm.gpu_types() == []
    answers("sinfo", "gpu:h100:8(S:0-1)\ngpu:a100:4,lustre:1\n(null)\n")
    assert slurm.has_accounting()
    assert slurm.has_gpus()
    assert slurm.gpu_types() == ["a100", "h100"]


def test_a_job_has_the_cores_that_slurm_gave_it_where_nothing_confines_it(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2})
    assert slurm.own_cores() == 3
    answers("squeue", "4 2\n")
    assert slurm.own_cores() == 2
