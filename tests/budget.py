"""Check that packages, tests and the tree stay within the sizes of budget.toml."""

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path


def _lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def _long_functions(path: Path, most: int) -> int:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 > most for node in functions)


def measure(names: list[str], function_lines: int, file_lines: int) -> Counter[str]:
    """Return the size of each budgeted thing, counted over the tracked files `names`."""
    sizes = Counter(
        {"tracked files": len(names), "files below workflow": sum(name.startswith("workflow/") for name in names)}
    )
    for name in names:
        path = Path(name)
        if path.suffix != ".py" or path.is_symlink():
            continue
        parts = path.parts
        sizes["files over their size"] += _lines(path) > file_lines
        if "tests" in parts:
            sizes["tests"] += _lines(path)
        elif parts[0] in ("src", "packages"):
            package = "/".join(parts[: 3 if parts[0] == "src" and len(parts) > 3 else 2])
            sizes[package] += _lines(path)
            sizes["src and packages"] += _lines(path)
            sizes["functions over their size"] += _long_functions(path, function_lines)
    return sizes


def main() -> int:
    """Print each size above its budget; return the exit status."""
    budget = tomllib.loads(Path("budget.toml").read_text(encoding="utf-8"))
    names = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
    limits = budget["at most"]
    sizes = measure([name for name in names if Path(name).exists()], **budget["sizes"])
    over = [f"{name}: {sizes[name]:,}, at most {limit:,}" for name, limit in limits.items() if sizes[name] > limit]
    over += [f"{name}: no budget" for name in sizes if name not in limits]
    print("\n".join(over) or f"{len(limits)} sizes are within budget.toml.")
    if over:
        print("Delete as much as you add, or raise a budget in a commit of its own that says what was bought.")
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
