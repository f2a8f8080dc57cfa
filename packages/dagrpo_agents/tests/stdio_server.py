"""An MCP server over stdio, as somebody else would write one."""

import os
import sys
import time

from mcp.server import MCPServer

server = MCPServer("sums")
calls = 0


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def count() -> str:
    """Count calls since the start."""
    global calls
    calls += 1
    return str(calls)


@server.tool()
def fail() -> str:
    """Raise an error."""
    raise ValueError("there are no sums on Sundays")


@server.tool()
def die() -> str:
    """End the server."""
    print("I am leaving", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def sleep(seconds: float) -> str:
    """Take a while."""
    time.sleep(seconds)
    return "done"


@server.tool()
def variable(name: str) -> str:
    """Read a variable of the environment."""
    return os.environ.get(name, "not set")


if __name__ == "__main__":
    server.run("stdio")
