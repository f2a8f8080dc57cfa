"""A taskset of the package verifiers: products with a calculator that all tasks share. It runs in that package's environment."""

from collections.abc import Iterator

import verifiers.v1 as vf  # type: ignore[import-not-found]


class Calculator(vf.Toolset[vf.SharedToolsetConfig]):  # type: ignore[misc]
    TOOL_PREFIX = None

    @vf.tool  # type: ignore[untyped-decorator]
    def multiply(self, a: int, b: int) -> str:
        """The product of two numbers."""
        return str(a * b)


class SumData(vf.TaskData):  # type: ignore[misc]
    answer: str


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):  # type: ignore[misc]
    @vf.reward(weight=2.0)  # type: ignore[untyped-decorator]
    async def correct(self, trace: vf.Trace) -> float:
        return float((trace.last_reply or "").strip() == self.data.answer)


class SumConfig(vf.TasksetConfig):  # type: ignore[misc]
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()
    number: int = 2


class SumTaskset(vf.Taskset[SumTask, SumConfig]):  # type: ignore[misc]
    @classmethod
    def toolsets(cls, config: SumConfig) -> list[vf.Toolset]:
        return [Calculator(config.tools)]

    def load(self) -> Iterator[SumTask]:
        for number in range(2, 2 + self.config.number):
            yield SumTask(SumData(prompt=f"{number}*7=", answer=str(number * 7)), self.config.task)


__all__ = ["SumTaskset"]

if __name__ == "__main__":
    Calculator.run()
