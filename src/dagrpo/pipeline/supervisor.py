"""Supervisor of a stage's processes: starts them, and again after a crash.

A crash is a signal, or an exception that is a bug: the out-of-memory killer, a driver that failed. A mistake of the user
is final: the same parameters would make it again. Ctrl-C and SIGTERM end it.
"""

import argparse
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from dagrpo.core.redaction import hide_secrets_in_tracebacks
from dagrpo.pipeline import runner as frame
from dagrpo.pipeline.cache import taking_over
from dagrpo.pipeline.damage import tell_damage
from dagrpo.pipeline.declaration import Stage, threads_of
from dagrpo.pipeline.failure_report import Ending, Failure, Kind, is_shown_by_snakemake
from dagrpo.pipeline.record import STATES, declared, outputs_of, runtime_of
from dagrpo.pipeline.room import TRAINING, require_planned_room
from dagrpo.pipeline.stages import all_stages
from dagrpo.utils.ancestors import GRACE, STARTED_BY, name_as_starter, stop_with_the_workflow
from dagrpo.utils.console import say
from dagrpo.utils.devices import own_devices
from dagrpo.utils.failures import MISTAKE, TRANSIENT, exit_code_of, sentence_of
from dagrpo.utils.locks import exclusive_access
from dagrpo.utils.threads import fix_threads

WRITING = STATES / "writing"  # locks of outputs


def main(arguments: Sequence[str]) -> None:
    """Run the stage that the command line names. Raises SystemExit 1 if it failed, after the reason was shown."""
    hide_secrets_in_tracebacks()
    options = frame.parse(arguments)
    stage = _named_by(options.job)
    try:
        stage = all_stages()[declared(options.job)["stage"]]
        fix_threads(threads_of(stage, runtime_of(options.runtime)))
        if options.attempt is not None:
            frame.run(stage, options)  # its supervisor holds the outputs' locks, which it inherits
        else:
            with _sole_writer(outputs_of(options).values()) as held:
                _supervise(stage, options, arguments, held)
    except SystemExit as end:
        own = options.attempt is None and end.code in {MISTAKE, TRANSIENT}
        raise SystemExit(1 if own else end.code) from None
    except KeyboardInterrupt:
        _ending_of(stage, options).tell_stopped()
        raise SystemExit(128 + signal.SIGINT) from None
    except Exception as error:  # as in the frame: a mistake found before any process was started
        sentence = tell_damage(options) or sentence_of(error)
        if sentence is None:
            raise
        _ending_of(stage, options).tell(Kind.MISTAKE, sentence)
        raise SystemExit(1 if options.attempt is None else exit_code_of(error)) from error


@contextmanager
def _sole_writer(outputs: Iterable[Path]) -> Iterator[list[int]]:
    """Lock all outputs until this process and the children that inherit these descriptors have ended.

    Raises UserError naming the process that writes one of them.
    """
    with ExitStack() as held:
        yield [held.enter_context(exclusive_access(path, _lock_of(path))) for path in sorted(set(outputs))]


def _lock_of(path: Path) -> Path:
    return WRITING / f"{hashlib.sha256(bytes(path)).hexdigest()[:16]}.lock"


def _named_by(job: Path) -> Stage:
    """Return the stage in a job file's name, for messages if the file itself cannot be read."""
    return all_stages().get(job.name.rpartition("-")[0], Stage(name=job.name, work=lambda job: None, reads=()))


def _ending_of(stage: Stage, options: argparse.Namespace) -> Ending:
    return Ending(stage, options.seed, options.log, options.attempt or 1, frame.rank())


def _supervise(stage: Stage, options: argparse.Namespace, arguments: Sequence[str], held: Sequence[int]) -> None:
    runtime = runtime_of(options.runtime)
    _ending_of(stage, options).forget()
    taking = taking_over(stage, options)
    if taking is not None:
        frame.run(taking, options)
        return
    stop_with_the_workflow()  # also while waiting for a GPU
    with own_devices(stage.needs(runtime).gpus) as devices:
        if devices and stage.name in TRAINING:
            require_planned_room(options, runtime)
        processes = stage.processes(runtime)
        if processes == 1 and stage.restarts == 0:
            frame.run(stage, options)
            return
        os.environ[GRACE] = str(runtime.grace_seconds)
        launcher = ("-m", "dagrpo.pipeline.launch", str(processes)) if processes > 1 else ()
        command = (sys.executable, *launcher, sys.argv[0], *arguments)
        raise SystemExit(_restarted(stage, command, options, held))


def _restarted(stage: Stage, command: Sequence[str], options: argparse.Namespace, held: Sequence[int]) -> int:
    """Return the exit code of the last attempt: the first that did not crash, or that came after a signal to stop."""
    attempts, before = Attempts(held), ""
    for number in range(1, stage.restarts + 2):
        code = attempts.run((*command, "--attempt", str(number)))
        ending = Ending(stage, options.seed, options.log, number)
        if attempts.stopped_by is not None:
            ending.tell_stopped()
            return 128 + attempts.stopped_by
        if code in {0, MISTAKE}:
            break
        failure = ending.crashed(f"it ended with {_ending(code)}.")
        how = "crashed in the same way." if failure.sentence == before else f"crashed: {failure.sentence}"
        _say_what_crashed(failure, how, goes_on=number <= stage.restarts)
        before = failure.sentence
    return code if code >= 0 else 128 - code


def _say_what_crashed(failure: Failure, how: str, *, goes_on: bool) -> None:
    """Print why an attempt crashed, except the last one under Snakemake, which prints it itself."""
    if goes_on or not is_shown_by_snakemake():
        then = "It goes on from its last state." if goes_on else "That was the last attempt."
        say(f"{failure.what}: attempt {failure.attempt} {how} {then} Log: {failure.log}")


class Attempts:
    """Runner of one process after the other. A signal to stop is passed on, and then no other is started.

    Each inherits the descriptors `held`.
    """

    def __init__(self, held: Sequence[int] = ()) -> None:
        self._held = held
        self.stopped_by: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)

    def run(self, command: Sequence[str]) -> int:
        """Run a process and return its exit code; negative: the signal that ended it."""
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        environment = os.environ | {STARTED_BY: name_as_starter()}
        self._process = subprocess.Popen(command, env=environment, pass_fds=self._held)
        if self._is_told_to_stop():  # while it was being started
            self._process.terminate()
        return self._process.wait()

    def _is_told_to_stop(self) -> bool:
        return self.stopped_by is not None

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        self.stopped_by = signum
        if signum == signal.SIGTERM and self._process is not None:  # a terminal sends SIGINT to the process, too
            self._process.terminate()


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
