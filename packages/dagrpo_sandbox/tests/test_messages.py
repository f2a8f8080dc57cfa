"""A program leaves a message for the next one of the same sandbox, which belongs to another trajectory."""

from collections.abc import Iterator

import pytest
from packages.dagrpo_sandbox.tests.running import USERS, Driver, driver

SCAN = """
import os
marker = "the" + "-message-" + "of-the-first"
found = 0
with open("/proc/self/mem", "rb", 0) as memory:
    for line in open("/proc/self/maps").readlines():
        place, rights = line.split()[:2]
        if rights.startswith("rw") and "stack" not in line:
            begin, end = (int(each, 16) for each in place.split("-"))
            memory.seek(begin)
            found += memory.read(end - begin).count((marker + "!").encode())
print(found)
"""
READINGS = {
    "the times of earlier programs": "fields = open('/proc/1/stat').read().split(); print(fields[15:17])",
    "its switches": "print([line for line in open('/proc/1/status') if 'switches' in line])",
    "its faults": "print(open('/proc/1/stat').read().split()[9:13])",
    "the times of the terminals": "s = os.stat('/dev/pts/ptmx'); print(s.st_atime_ns, s.st_mtime_ns, s.st_mode)",
    "their number": "print(open('/dev/ptmx'))",
}


@pytest.fixture(params=USERS)
def box(request: pytest.FixtureRequest) -> Iterator[Driver]:
    with driver(request.param) as started:
        yield started


def test_neither_text_nor_output_stays_in_memory(box: Driver) -> None:
    message = "the-message-of-the-first!"
    for length in (1, 20, 400):
        assert box.run(f"print({message!r} * {length})  # {message * length}").status == "ok"
        assert int(box.run(SCAN).stdout) <= 1  # what the scan itself has just put together


@pytest.mark.parametrize("what", READINGS)
def test_what_the_server_and_terminals_count_is_hidden(box: Driver, what: str) -> None:
    assert box.run(f"import os\n{READINGS[what]}").stdout.splitlines()[-1].startswith("FileNotFoundError")


@pytest.mark.parametrize("start", ["os.fork() or os._exit(0)", "threading.Thread(target=print).start()"])
def test_the_number_of_processes_is_not_read_off_the_next(box: Driver, start: str) -> None:
    box.run("1")
    box.run(f"import os, threading\nfor _ in range(7): {start}")
    assert box.run("import os; print(os.getpid())").stdout in ("2\n", "3\n")
