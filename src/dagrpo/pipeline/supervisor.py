"""Supervisor of a stage's processes: starts them, and again after a crash.

A crash is a signal, or an exception that is a bug: the out-of-memory killer, a driver that failed. A user's mistake is final: the
same parameters would end in it again. Ctrl-C and SIGTERM end it. Snakemake's `retries` cannot replace this: it runs a job again
whatever its exit code, a user's mistake too, and DVC's stages and stages started by hand would have none.
"""

import argparse
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dagrpo.core.errors import UserError
from dagrpo.core.redaction import hide_secrets_in_tracebacks
from dagrpo.pipeline import runner
from dagrpo.pipeline.cache import cache_hit, is_made, waiting_for_equal_job
from dagrpo.pipeline.declaration import Stage, threads_of
from dagrpo.pipeline.failure_report import FailureReport, Kind, is_shown_by_snakemake
from dagrpo.pipeline.nodes import command_on_nodes
from dagrpo.pipeline.planner import planner
from dagrpo.pipeline.record import STATES, configuration_of, declared, outputs_of, parts_of, runtime_of
from dagrpo.pipeline.stages import all_stages
from dagrpo.trainer.config.runtime import Runtime
from dagrpo.utils.child_variables import QUIET
from dagrpo.utils.console import say
from dagrpo.utils.devices import own_devices
from dagrpo.utils.failures import MISTAKE, TRANSIENT, exit_code_of, sentence_of, words_of
from dagrpo.utils.files import digest_of
from dagrpo.utils.locks import exclusive_access
from dagrpo.utils.machine import fix_threads
from dagrpo.utils.portable import compute_portably
from dagrpo.utils.watchdog import GRACE, STARTED_BY, name_as_starter, stop_with_the_workflow

if TYPE_CHECKING:
    from dagrpo.config.schema import Params

logger = logging.getLogger(__name__)
TRAINING = frozenset({"sft", "train"})  # stages
ALL_THE_SAME = "To run it all the same, set runtime.training.require_room to false."
WRITING = STATES / "writing"  # locks of outputs
Start = Callable[[Sequence[str]], AbstractContextManager[Sequence[str]]]  # of an attempt: from arguments to command


def main(arguments: Sequence[str]) -> None:
    """Run the stage that the command line names. Raises SystemExit 1 if it failed, after the reason was shown."""
    hide_secrets_in_tracebacks()
    options = runner.parse(arguments)
    name = options.job.name  # for messages if the file itself cannot be read
    stage = all_stages().get(name.rpartition("-")[0], Stage(name=name, work=lambda job: None, reads=()))
    try:
        stage = all_stages()[declared(options.job)["stage"]]
        runtime = runtime_of(options.runtime)
        fix_threads(threads_of(stage, runtime))
        compute_portably(runtime.portable_arithmetic)
        if options.attempt is not None:
            runner.run(stage, options)  # its supervisor holds the outputs' locks, which it inherits
        else:
            with _sole_writer(outputs_of(options).values()) as locks:
                _supervise(stage, options, arguments, locks)
    except SystemExit as end:
        own = options.attempt is None and end.code in {MISTAKE, TRANSIENT}
        raise SystemExit(1 if own else end.code) from None
    except KeyboardInterrupt:
        _report_of(stage, options).record_stop()
        raise SystemExit(128 + signal.SIGINT) from None
    except Exception as error:  # as in the frame: a mistake found before any process was started
        sentence = runner.damage_found(options) or sentence_of(error)
        if sentence is None:
            raise
        _report_of(stage, options).record(Kind.MISTAKE, sentence)
        raise SystemExit(1 if options.attempt is None else exit_code_of(error)) from error


@contextmanager
def _sole_writer(outputs: Iterable[Path]) -> Iterator[list[int]]:
    """Lock all outputs until this process and the children that inherit these descriptors have ended.

    Raises UserError naming the process that writes one of them.
    """
    locks = {path: WRITING / f"{digest_of(str(path))[:16]}.lock" for path in sorted(set(outputs))}
    with ExitStack() as stack:
        yield [stack.enter_context(exclusive_access(path, lock)) for path, lock in locks.items()]


def _report_of(stage: Stage, options: argparse.Namespace) -> FailureReport:
    return FailureReport(stage, options.seed, options.log, options.attempt or 1, runner.rank())


def _supervise(stage: Stage, options: argparse.Namespace, arguments: Sequence[str], locks: Sequence[int]) -> None:
    _report_of(stage, options).remove()
    if is_made(stage, options):
        runner.keep_all(stage, options)
        say(f"{stage.name}: kept; inputs, parameters and code are the same (runtime.reuse: false makes it again).")
        return
    stop_with_the_workflow()  # also while waiting for another job or a GPU
    parts_wait = nullcontext(list[int]())  # of a job that spreads each waits by itself
    wait: AbstractContextManager[list[int]] = parts_wait if stage.spreads else waiting_for_equal_job(stage, options)
    with wait as waiting:
        if stage.spreads:
            is_whole = all(is_made(stage, part) or cache_hit(stage, part) for part in parts_of(options))
            linking = stage if is_whole else None
        else:
            linking = cache_hit(stage, options)
        if linking is not None:  # all outputs that are not made yet
            runner.run(linking, options)
            return
        _make(stage, options, arguments, [*locks, *waiting])


def _make(stage: Stage, options: argparse.Namespace, arguments: Sequence[str], locks: Sequence[int]) -> None:
    """Run the stage's processes. Raises SystemExit with the exit code of the last attempt where they may be restarted."""
    runtime = runtime_of(options.runtime)
    with own_devices(stage.needs(runtime).gpus) as devices:
        if devices and stage.name in TRAINING:
            require_planned_room(options, runtime)
        is_launched = stage.launched(declared(options.job)["params"])
        processes, nodes = stage.processes(runtime) if is_launched else 1, stage.nodes(runtime)
        if processes * nodes == 1 and stage.restarts == 0:
            runner.run(stage, options)
            return
        os.environ.update({GRACE: str(runtime.grace_seconds)} | (QUIET if nodes > 1 else {}))
        words = (sys.argv[0], *arguments)
        ranks = ("-m", "dagrpo.pipeline.launch", str(processes)) if processes > 1 else ()

        def start(attempt: Sequence[str]) -> AbstractContextManager[Sequence[str]]:
            if nodes > 1:
                return command_on_nodes(runtime, processes, (*words, *attempt))
            return nullcontext((sys.executable, *ranks, *words, *attempt))

        raise SystemExit(_restarted(stage, start, options, locks))


def _restarted(stage: Stage, start: Start, options: argparse.Namespace, locks: Sequence[int]) -> int:
    """Return the exit code of the last attempt: the first that did not crash, or that came after a signal to stop."""
    attempts, previous = Attempts(locks), ""
    for number in range(1, stage.restarts + 2):
        with start(("--attempt", str(number))) as command:
            code = attempts.run(command)
        report = FailureReport(stage, options.seed, options.log, number)
        if attempts.stopped_by is not None:
            report.record_stop()
            return 128 + attempts.stopped_by
        if code in {0, MISTAKE}:
            break
        failure = report.record_crash(f"it ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}.")
        if failure.kind == Kind.MISTAKE:  # of a rank; `srun` ends with the code of another
            return MISTAKE
        is_last = number > stage.restarts
        if not (is_last and is_shown_by_snakemake()):
            how = "crashed in the same way." if failure.sentence == previous else f"crashed: {failure.sentence}"
            then = "That was the last attempt." if is_last else "It goes on from its last state."
            say(f"{failure.what}: attempt {failure.attempt} {how} {then} Log: {failure.log}")
        previous = failure.sentence
    return code if code >= 0 else 128 - code


class Attempts:
    """Runner of one process after the other. A signal to stop is passed on, and then no other is started.

    Each inherits the descriptors `locks`.
    """

    def __init__(self, locks: Sequence[int] = ()) -> None:
        self._locks = locks
        self.stopped_by: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)

    def run(self, command: Sequence[str]) -> int:
        """Run a process and return its exit code; negative: the signal that ended it."""
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        environment = os.environ | {STARTED_BY: name_as_starter()}
        self._process = subprocess.Popen(command, env=environment, pass_fds=self._locks)
        if self._is_stopped():  # while it was being started
            self._process.terminate()
        return self._process.wait()

    def _is_stopped(self) -> bool:
        return self.stopped_by is not None

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        self.stopped_by = signum
        if signum == signal.SIGTERM and self._process is not None:  # a terminal sends SIGINT to the process, too
            self._process.terminate()


def require_planned_room(options: argparse.Namespace, runtime: Runtime) -> None:
    """Raise UserError if the plan of the whole experiment exceeds the visible GPUs, with what to change.

    Checks nothing if runtime.training.require_room is false, or a stage was started by hand, which has no configuration.
    Where the plan cannot be made, a warning says why: a driver may not say how much memory there is.
    """
    configuration = configuration_of(options)
    if not runtime.training.require_room or not configuration:
        return
    try:
        plans = planner()  # it loads torch, which other stages do without
        refused = None if plans is None else plans.refusal(whole_params(configuration, runtime))
    except Exception as error:  # noqa: BLE001 - a plan that fails is no reason not to train; the stage itself reports wrong inputs
        logger.warning("Whether this experiment fits the GPU was not checked: %s", words_of(error))
        return
    if refused is not None:
        raise UserError(f"{refused} {ALL_THE_SAME}")


def whole_params(configuration: Mapping[str, Any], runtime: Runtime) -> "Params":
    """Return an experiment's parameters from those that are not the defaults, by dotted key, and section runtime."""
    from dagrpo.config.overlay import merged, with_keys
    from dagrpo.config.schema import Params, parse

    own = with_keys({"runtime": runtime.model_dump()}, configuration["changed"])
    return parse(merged(Params().model_dump(), own))
