"""Programs of all kinds make attempts: good ones, and those that die, flood, hang, or never ask."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from packages.dagrpo_agents.tests.scripted_policy import PlainChat, ScriptedPolicy, session_with
from tests.rollout.scripted_chat import ids as tokens

from dagrpo.core.trajectory import Trajectory
from dagrpo.core.types import Completion
from dagrpo.engine.errors import ServerError
from dagrpo.rollout.agents import AgentContext
from dagrpo.rollout.session import Session
from dagrpo_agents.program import Config, open_program

ASK = """
import json, os, sys, urllib.request
problem = json.load(sys.stdin)
def ask(messages, base=os.environ.get("OPENAI_BASE_URL"), key=os.environ.get("OPENAI_API_KEY")):
    request = urllib.request.Request(base + "/chat/completions", json.dumps({"messages": messages}).encode(),
                                     {"Authorization": "Bearer " + key, "Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
"""
SERVE = """
import json, sys, threading, urllib.request
def work(line):
    request = urllib.request.Request(line["base_url"] + "/chat/completions",
                                     json.dumps({"messages": line["problem"]["messages"]}).encode(),
                                     {"Authorization": "Bearer " + line["api_key"], "Content-Type": "application/json"})
    content = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    if content == "die":
        import os; os._exit(3)
    print(json.dumps({"id": line["id"], "reward": len(content)}), flush=True)
print("ready")
for line in map(json.loads, sys.stdin):
    if "problem" in line:
        threading.Thread(target=work, args=(line,)).start()
"""


@pytest.fixture
def context(tmp_path: Path) -> AgentContext:
    return AgentContext(
        chat=PlainChat(),
        tools={},
        folder=tmp_path / "agent",
        passages=None,
        max_new_tokens=50,
        context_tokens=10_000,
    )


def attempts(code: str, context: AgentContext, sessions: Sequence[Session], **values: Any) -> list[Trajectory]:
    """One attempt per session, side by side, by a program of this Python code."""
    config = Config(name="program", command=[sys.executable, "-c", code], **values)

    async def run() -> list[Trajectory]:
        async with open_program(config, context) as agent:
            tries = (agent(session.prompt, number, session) for number, session in enumerate(sessions))
            return await asyncio.gather(*tries)

    return asyncio.run(asyncio.wait_for(run(), 240))


def attempt(code: str, context: AgentContext, *answers: str, **values: Any) -> Trajectory:
    (trajectory,) = attempts(code, context, [session_with(ScriptedPolicy(*answers))], **values)
    return trajectory


def test_a_program_makes_an_attempt_and_every_token_is_recorded(context: AgentContext) -> None:
    code = ASK + 'first = ask(problem["messages"])\n'
    code += 'ask([*problem["messages"], {"role": "assistant", "content": first}, {"role": "user", "content": "sure?"}])'
    trajectory = attempt(code, context, "3", "yes, 3")
    assert (trajectory.stop_reason, trajectory.fault, trajectory.turns) == ("answered", "", 2)
    assert trajectory.text == "yes, 3"
    assert trajectory.reported == {}
    assert [tuple(sample.completion_ids) for sample in trajectory.samples] == [tokens("3\x03yes, 3\x03")]
    assert [message["role"] for message in trajectory.messages] == ["assistant", "user", "assistant"]


def test_what_it_reports_is_the_trajectorys(context: AgentContext) -> None:
    code = ASK + 'ask(problem["messages"]); print("so"); print(json.dumps({"reward": 0.5, "rewards": {"style": 1}}))'
    assert attempt(code, context, "3").reported == {"reward": 0.5, "style": 1.0}


def test_it_is_told_the_problem_and_never_the_answer(context: AgentContext, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    code = ASK + f'open({str(seen)!r}, "w").write(json.dumps([problem, open(os.environ["DAGRPO_PROBLEM"]).read()]))'
    session = session_with(ScriptedPolicy(), ground_truth="TRUTH", answer="because TRUTH")
    attempts(code, context, [session])
    problem, file = json.loads(seen.read_text())
    assert problem == json.loads(file)
    assert problem["question"] == "1+2=?"
    assert problem["messages"] == [{"role": "user", "content": "1+2=?"}]
    assert "TRUTH" not in file


def test_its_environment_has_no_secrets_but_its_own(
    context: AgentContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf-12345")
    monkeypatch.setenv("OPENAI_API_KEY", "the-users-own")
    seen = tmp_path / "seen"
    attempt(f"import os; open({str(seen)!r}, 'w').write(repr(dict(os.environ)))", context)
    assert "hf-12345" not in seen.read_text()
    assert "the-users-own" not in seen.read_text()
    assert "OPENAI_API_KEY" in seen.read_text()


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("pass", "without asking"),
        (ASK + 'ask(problem["messages"]); raise SystemExit("no more")', "code 1: no more"),
        ("import os; os.abort()", "code -6"),
        (
            ASK + 'ask(problem["messages"]); print(json.dumps({"reward": "much"}))',
            "the reward `reward` as 'much', which is not",
        ),
        ("import sys\nwhile True: sys.stdout.write('x' * 65536)", "more than 16 MiB"),
        ("import time; time.sleep(1000)", "not done after 1.5 seconds"),
        ("import sys\nwhile True: sys.stderr.write('x' * 65536)", "not done after 1.5 seconds"),
    ],
    ids=["asks nothing", "gives up", "dies", "reports nonsense", "floods", "hangs", "floods its log"],
)
def test_a_program_that_fails_is_told_in_a_sentence(context: AgentContext, code: str, fault: str) -> None:
    seconds = 1.5 if "not done" in fault else 60.0
    trajectory = attempt(code, context, "3", seconds=seconds)
    assert trajectory.stop_reason == "program_failed"
    assert fault in trajectory.fault
    assert all(log.stat().st_size <= 1 << 20 for log in context.folder.glob("*.log"))


@pytest.mark.parametrize(
    ("said", "stop_reason", "fault"),
    [
        ('print("done")', "program_failed", "The program has reported no reward."),
        ('print(json.dumps({"rewards": {}}))', "program_failed", "The program has reported no reward."),
        ('print(json.dumps({"reward": 0}))', "answered", ""),
        ("raise SystemExit('no more')", "program_failed", "The program ended with code 1: no more"),
    ],
)
def test_a_program_whose_report_is_wanted_has_failed_without_one(
    context: AgentContext, said: str, stop_reason: str, fault: str
) -> None:
    trajectory = attempt(ASK + f'ask(problem["messages"]); {said}', replace(context, wants_report=True), "3")
    assert (trajectory.stop_reason, trajectory.fault) == (stop_reason, fault)


def test_nothing_of_a_program_is_left_running(context: AgentContext, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    child = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
    code = ASK + child + f'open({str(seen)!r}, "w").write(str(p.pid)); ask(problem["messages"]); print("still here")'
    assert attempt(code, context, "3").stop_reason == "answered"
    assert _has_ended(int(seen.read_text()))


def _has_ended(process: int, seconds: float = 10.0) -> bool:
    """Whether a process ends in time: who was killed dies when the kernel next looks at it, not at once."""
    until = time.monotonic() + seconds
    while psutil.pid_exists(process) and psutil.Process(process).status() != "zombie":
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_a_child_that_has_left_the_programs_group_is_not_waited_for(context: AgentContext, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    child = "import subprocess\np = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    code = (
        ASK
        + child
        + f'open({str(seen)!r}, "w").write(str(p.pid)); ask(problem["messages"]); print(\'{{"reward": 1}}\')'
    )
    try:
        trajectory = attempt(code, context, "3", seconds=20.0)
    finally:
        psutil.Process(int(seen.read_text())).kill()
    assert (trajectory.stop_reason, trajectory.reported) == ("answered", {"reward": 1.0})


def test_the_engines_failure_ends_the_run_and_the_program(context: AgentContext) -> None:
    class Broken(ScriptedPolicy):
        async def complete(self, prompt: tuple[int, ...], most: int) -> Completion:
            raise ServerError("the server has died")

    with pytest.raises(ServerError, match="has died"):
        attempts(ASK + 'ask(problem["messages"])', context, [session_with(Broken())])


def test_one_program_serves_many_attempts(context: AgentContext) -> None:
    sessions = [session_with(ScriptedPolicy("x" * number)) for number in range(1, 9)]
    trajectories = attempts(SERVE, context, sessions, serve=True)
    assert [trajectory.reported for trajectory in trajectories] == [{"reward": float(n)} for n in range(1, 9)]
    assert {trajectory.stop_reason for trajectory in trajectories} == {"answered"}


def test_answers_of_threads_may_share_a_line(context: AgentContext) -> None:
    code = "import json, sys\nprint('ready')\ntwo = [json.loads(sys.stdin.readline())['id'] for _ in range(2)]\n"
    code += "print(''.join(json.dumps({'id': each, 'reward': 1}) for each in two) + '\\n', flush=True)\n"
    sessions = [session_with(ScriptedPolicy()) for _ in range(2)]
    trajectories = attempts(code, context, sessions, serve=True, seconds=20.0)
    assert [trajectory.reported for trajectory in trajectories] == [{"reward": 1.0}] * 2


def test_a_server_that_dies_fails_its_attempts_and_is_started_again(context: AgentContext) -> None:
    config = Config(name="program", command=[sys.executable, "-c", SERVE], serve=True)

    async def run() -> list[Trajectory]:
        async with open_program(config, context) as agent:
            sessions = [session_with(ScriptedPolicy(answer)) for answer in ("die", "3")]
            return [await agent(session.prompt, 0, session) for session in sessions]

    died, fine = asyncio.run(asyncio.wait_for(run(), 240))
    assert (died.stop_reason, fine.stop_reason) == ("program_failed", "answered")
    assert "has ended" in died.fault


def test_a_server_that_writes_without_end_is_ended(context: AgentContext) -> None:
    code = "import sys\nsys.stdin.readline()\nwhile True: sys.stdout.write('x' * 65536)"
    assert "a line of more than" in attempt(code, context, serve=True).fault


PARENT = """
import asyncio, sys
from pathlib import Path
from dagrpo_agents.programs.process import running
async def main():
    folder = Path(sys.argv[1])
    (folder / "in").touch()
    command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(1000)"]
    async with running(command, variables={}, input_file=folder / "in", log=folder / "log") as program:
        await program.output.readline()
        print(program._process.pid, flush=True)
        await asyncio.sleep(1000)
asyncio.run(main())
"""


def test_a_program_does_not_outlive_us_however_we_end(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert parent.stdout is not None
    program = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    program.wait(20)


PAGE = Path(__file__).parents[3] / "docs/agents.md"


def test_the_program_of_the_documentation_works(context: AgentContext, tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (tmp_path / "agent.py").write_text(code)
    session = session_with(ScriptedPolicy("three, I think", "3"))

    async def run() -> Trajectory:
        config = Config(name="program", command=[sys.executable, str(tmp_path / "agent.py")])
        async with open_program(config, context) as agent:
            return await agent(session.prompt, 0, session)

    trajectory = asyncio.run(run())
    assert (trajectory.fault, trajectory.text) == ("", "3")
    assert trajectory.reported == {"reward": 1.0, "turns": 3.0}
    assert [tuple(sample.completion_ids) for sample in trajectory.samples] == [tokens("three, I think\x033\x03")]
