"""What a turn costs through the gateway, against our own loop that asks the same session directly. No engine, no model.

    PYTHONPATH=. python benchmarks/gateway.py --trajectories 128 --turns 4 --tokens 64

Processor time, in which other work on the machine does not count, and time by the clock. Both have the same conversation with a
policy that answers at once. The program's side, a client in the same process, is part of the gateway's figure.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable

from aiohttp import ClientSession
from packages.dagrpo_agents.tests.scripted_policy import ScriptedPolicy, session_with

from dagrpo.rollout.session import Session
from dagrpo_agents.gateway.server import Gateway, open_gateway


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=128)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    asyncio.run(_compare(options.trajectories, options.turns, options.tokens, options.repeats))


async def _compare(trajectories: int, turns: int, tokens: int, repeats: int) -> None:
    def sessions() -> list[Session]:
        policies = [ScriptedPolicy(*["x" * (tokens - 1)] * turns) for _ in range(trajectories)]
        return [session_with(policy, turns=turns, limit=1 << 20, new_tokens=tokens) for policy in policies]

    async with open_gateway() as gateway, ClientSession() as http:
        direct = await _median(lambda one: _directly(one, turns), sessions, repeats)
        through = await _median(lambda one: _through(gateway, http, one, turns), sessions, repeats)
    made = trajectories * turns
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for what, first, second in zip(("of the processor", "by the clock"), direct, through, strict=True):
        print(
            f"{what:16} directly {first / made * 1e3:6.3f} ms a turn, through the gateway {second / made * 1e3:6.3f} ms "
            f"({second / first:.1f} times), the gateway's own {(second - first) / made * 1e3:6.3f} ms"
        )


async def _median(
    attempt: Callable[[Session], Awaitable[None]], sessions: Callable[[], list[Session]], repeats: int
) -> tuple[float, float]:
    """Seconds of processor time, and by the clock."""
    processor, clock = [], []
    for _ in range(repeats + 1):  # the first one warms up
        fresh = sessions()
        began, start = time.perf_counter(), time.process_time()
        await asyncio.gather(*map(attempt, fresh))
        processor.append(time.process_time() - start)
        clock.append(time.perf_counter() - began)
    return statistics.median(processor[1:]), statistics.median(clock[1:])


async def _directly(session: Session, turns: int) -> None:
    turn = await session.ask(session.prompt.row.prompt)
    for number in range(turns - 1):
        turn = await session.ask([{"role": "user", "content": f"go on {number}"}], turn)


async def _through(gateway: Gateway, http: ClientSession, session: Session, turns: int) -> None:
    messages = [dict(message) for message in session.prompt.row.prompt]
    async with gateway.admit(session) as access:
        headers = {"Authorization": f"Bearer {access.key}"}
        for number in range(turns):
            body = {"model": "policy", "messages": messages}
            async with http.post(f"{access.base_url}/chat/completions", json=body, headers=headers) as answer:
                said = (await answer.json())["choices"][0]["message"]
            messages += [said, {"role": "user", "content": f"go on {number}"}]
    assert len(session.samples()) == 1, "the gateway did not extend the turns"


if __name__ == "__main__":
    main()
