"""Errors of the gateway in OpenAI's form."""

from typing import Any


class Refused(Exception):
    """Error of a request that is not answered. Its message is for the program's author."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """Return the error as OpenAI's clients read it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}
