"""Run external functions in separate daemon threads.

One that never ends delays neither other calls nor the process's end. asyncio.to_thread has few threads, and the interpreter waits for
them when it ends.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any


async def in_thread(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Return the function's result, or raise its error. If the caller is cancelled, the function runs on, and its result is dropped."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def tell(result: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((result, error))

    def work() -> None:
        result, raised = None, None
        try:
            result = function(**arguments)
        except BaseException as error:  # noqa: BLE001  the caller raises it
            raised = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, result, raised)

    threading.Thread(target=work, daemon=True).start()
    result, error = await ended
    if error is not None:
        raise error
    return result
