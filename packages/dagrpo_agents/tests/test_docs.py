"""The program in docs/agents.md makes an attempt."""

import asyncio
import re
import sys
from pathlib import Path

from packages.dagrpo_agents.tests.scripted_policy import ScriptedPolicy, session_with, tokens
from packages.dagrpo_agents.tests.test_environment import context_in

from dagrpo.core.trajectory import Trajectory
from dagrpo_agents.program import Config, open_program

PAGE = Path(__file__).parents[3] / "docs/agents.md"


def test_the_program_of_the_page_works(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (tmp_path / "agent.py").write_text(code)
    session = session_with(ScriptedPolicy("three, I think", "3"))

    async def run() -> Trajectory:
        config = Config(name="program", command=[sys.executable, str(tmp_path / "agent.py")])
        async with open_program(config, context_in(tmp_path)) as agent:
            return await agent(session.prompt, 0, session)

    trajectory = asyncio.run(run())
    assert (trajectory.fault, trajectory.text) == ("", "3")
    assert trajectory.reported == {"reward": 1.0, "turns": 3.0}
    assert [tuple(sample.completion_ids) for sample in trajectory.samples] == [tokens("three, I think\x013\x01")]
