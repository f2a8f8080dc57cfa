"""Other people's functions in threads of their own: one that never ends holds up neither other calls nor the process's end.

The threads of asyncio.to_thread are a few, and the interpreter waits for them when it ends.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any


async def in_thread(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """What the function returns or raises. Where nobody waits any more, it goes on unheard."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def tell(result: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((result, error))

    def work() -> None:
        result, raised = None, None
        try:
            result = function(**arguments)
        except BaseException as error:  # noqa: BLE001  whoever waits raises it
            raised = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, result, raised)

    threading.Thread(target=work, daemon=True).start()
    result, error = await ended
    if error is not None:
        raise error
    return result
