"""Starts the process or processes that do a stage's work, and starts them again after a crash.

A crash is a signal, or an exception that is a bug: the out-of-memory killer, a driver that failed. A mistake of the user
is final: the same parameters would make it again. Ctrl-C and SIGTERM end it.
"""

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from dagrpo.console import say
from dagrpo.execution import frame
from dagrpo.execution.ancestors import stop_with_the_workflow
from dagrpo.execution.declaration import Stage
from dagrpo.execution.devices import own_devices
from dagrpo.execution.failures import MISTAKE, TRANSIENT, sentence_of
from dagrpo.files import read_json
from dagrpo.params.runtime import Runtime
from dagrpo.stages import all_stages

INTERRUPTED = frozenset({128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM})


def main(arguments: Sequence[str]) -> None:
    """Run the stage that the command line names. SystemExit 1 when it failed; the reason has been printed."""
    options = frame.parse(arguments)
    stage = all_stages()[read_json(options.job)["stage"]]
    if options.attempt is not None:
        frame.run(stage, options)
        return
    runtime = Runtime.model_validate(read_json(options.runtime))
    try:
        with own_devices(stage.needs(runtime).gpus):
            _run(stage, runtime, options, arguments)
    except SystemExit as end:
        raise SystemExit(1 if end.code in {MISTAKE, TRANSIENT} else end.code) from None
    except Exception as error:  # as in the frame: a mistake found before any process was started
        sentence = sentence_of(error)
        if sentence is None:
            raise
        print(f"{stage.name}: {sentence}", file=sys.stderr, flush=True)
        raise SystemExit(1) from error


def _run(stage: Stage, runtime: Runtime, options: argparse.Namespace, arguments: Sequence[str]) -> None:
    processes = stage.processes(runtime)
    if processes == 1 and stage.restarts == 0:
        frame.run(stage, options)
        return
    launcher = ("-m", "dagrpo.launch", str(processes)) if processes > 1 else ()
    command = (sys.executable, *launcher, sys.argv[0], *arguments)
    stop_with_the_workflow()
    for attempt in range(1, stage.restarts + 2):
        code = _attempt((*command, "--attempt", str(attempt)))
        if code in {0, MISTAKE} or code in INTERRUPTED or attempt > stage.restarts:
            raise SystemExit(_as_exit_code(code))
        say(
            f"{stage.name}: attempt {attempt} crashed ({_ending(code)}); it goes on from its last state. Log: {options.log}"
        )


def _attempt(command: Sequence[str]) -> int:
    """The exit code of one attempt; negative: the signal that ended it."""
    process = subprocess.Popen(command)

    def pass_on(signum: int, frame: FrameType | None) -> None:
        process.send_signal(signum)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the whole group, the process among them
    return process.wait()


def _as_exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
