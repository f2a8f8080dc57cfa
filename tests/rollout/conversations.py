"""Made-up attempts with tools and users, as rows of a rollout table."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dagrpo.rollout.table import ROLLOUTS, TRAINING_ROLLOUTS

HOSTILE = (
    "\x1b[2J\x1b]8;;https://evil.example\x07[bold red]x[/]\x1b]52;c;ZXZpbA==\x07\u202eabc\u2066\x9b31m</pre>"
    '<script src="https://evil.example/x.js">alert(1)</script><img src=x onerror=alert(2)> :smile: \r\x08'
)


def assistant(text: str, **more: Any) -> dict[str, Any]:
    """A turn of the policy."""
    return {"role": "assistant", "content": text} | more


def called(
    turn: int, expression: str, result: str, *, name: str = "calculator", status: str = "ok", raw: str | None = None
) -> dict[str, Any]:
    """A call of the calculator, and how it went."""
    arguments = json.dumps({"expression": expression}) if raw is None else raw
    return {"turn": turn, "name": name, "arguments": arguments, "status": status, "result": result}


def tool(call: dict[str, Any]) -> dict[str, Any]:
    """The message in which the policy is told a call's result."""
    return {"role": "tool", "tool_call_id": f"call_{call['turn']}", "content": call["result"]}


def attempt(
    problem: int,
    sample: int,
    messages: Sequence[dict[str, Any]],
    calls: Sequence[dict[str, Any]] = (),
    *,
    stop_reason: str = "answered",
    fault: str = "",
    task: str = "arithmetic_tool",
) -> dict[str, Any]:
    """A row of ROLLOUTS. Each turn of the policy is three tokens, what lies between two turns is two."""
    left, right = 12 + problem, 7
    turns = sum(message["role"] == "assistant" for message in messages)
    tokens, mask = [1, 2, 3, 4], [False] * 4
    for turn in range(turns):
        tokens += [10 + turn] * 3 + [5, 6] * (turn < turns - 1)
        mask += [True] * 3 + [False] * 2 * (turn < turns - 1)
    return {
        "task": task,
        "problem_index": problem,
        "sample_index": sample,
        "prompt": f"<|user|>What is {left} * {right}?<|assistant|>",
        "completion": messages[-1]["content"] if messages else "",
        "prompt_ids": [1, 2, 3, 4],
        "completion_ids": [token for token, written in zip(tokens, mask, strict=True) if written],
        "rollout_logprobs": [-0.5] * sum(mask),
        "weight_version": "v",
        "finish_reason": "stop",
        "ground_truth": str(left * right),
        "verifier": "gsm8k",
        "question": f"What is {left} * {right}?",
        "sampling_seed": 10 * problem + sample + 1,
        "turns": turns,
        "stop_reason": stop_reason,
        "fault": fault,
        "messages": json.dumps(list(messages)),
        "calls": list(calls),
        "samples": [{"token_ids": tokens, "loss_mask": mask}] if turns > 1 else [],
        "reported": [],
    }


def with_tool(problem: int, sample: int = 0) -> dict[str, Any]:
    """One call, and the right answer."""
    product = (12 + problem) * 7
    call = called(0, f"{12 + problem} * 7", str(product))
    return attempt(problem, sample, [assistant("Let me multiply."), tool(call), assistant(f"#### {product}")], [call])


def mended(problem: int, sample: int = 0) -> dict[str, Any]:
    """A call that could not be read, then one that could, and the right answer."""
    product = (12 + problem) * 7
    broken = called(0, "", "Error: the call is not valid JSON.", status="undecodable", raw='{"expression": 12 * 7')
    call = called(1, f"{12 + problem} * 7", str(product))
    messages = [assistant(""), tool(broken), assistant("Again:"), tool(call), assistant(f"It is #### {product}")]
    return attempt(problem, sample, messages, [broken, call])


def alone(problem: int, sample: int = 0) -> dict[str, Any]:
    """One turn, no call, wrong."""
    return attempt(problem, sample, [assistant("#### 13")])


def corrected(problem: int, sample: int = 0) -> dict[str, Any]:
    """A user who asks again."""
    user = {"role": "user", "content": "That is not right. Try again."}
    messages = [assistant("#### 5", reasoning_content="Seven and five, so five."), user, assistant("#### 6")]
    return attempt(problem, sample, messages, stop_reason="user_done")


def excluded(problem: int, sample: int = 0) -> dict[str, Any]:
    """The right words at the end, but something broke that the policy has no part in."""
    call = called(0, "1", "")
    messages = [assistant("Let me see."), tool(call), assistant(f"#### {(12 + problem) * 7}")]
    return attempt(problem, sample, messages, [call], stop_reason="excluded", fault="the search server refuses")


def hostile(problem: int, sample: int = 0) -> dict[str, Any]:
    """Text that would control a terminal or a page, wherever a policy or a tool can put it."""
    call = called(0, "", HOSTILE, name=HOSTILE, status="unknown_tool", raw=HOSTILE)
    messages = [assistant(HOSTILE, reasoning_content=HOSTILE), tool(call), assistant(HOSTILE)]
    row = attempt(problem, sample, messages, [call], fault=HOSTILE)
    return row | {"prompt": HOSTILE, "question": HOSTILE}


def table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """As stage sample writes it."""
    return pa.Table.from_pylist(list(rows), schema=ROLLOUTS)


def training_table(rows: Sequence[dict[str, Any]], rewards: Sequence[float], step: int = 1) -> pa.Table:
    """As stage train writes it."""
    mean = sum(rewards) / len(rewards)
    graded = [
        row
        | {
            "step": step,
            "logprob_differences": [0.0] * len(row["rollout_logprobs"]),
            "extracted": row["completion"].rpartition("#### ")[2] or None,
            "verdict": "right" if reward > 0.5 else "wrong",
            "correct": reward > 0.5,
            "components": [("accuracy", reward)],
            "reward": reward,
            "advantage": reward - mean,
            "token_advantages": [],
            "teacher_logprobs": [],
            "sampling_support": [],
            "earlier_versions": [],
            "discarded": False,
            "completion_tokens": len(row["completion_ids"]),
            "kept": "all",
        }
        for row, reward in zip(rows, rewards, strict=True)
    ]
    return pa.Table.from_pylist(graded, schema=TRAINING_ROLLOUTS)
