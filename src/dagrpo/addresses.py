"""Addresses of servers and databases, as somebody has written them: read, or found to be none."""

from urllib.parse import SplitResult, urlsplit

SERVER_SCHEMES = frozenset({"http", "https"})


def parts_of(address: str) -> SplitResult | None:
    """None for what is no address: its host or port cannot be read, or a password cuts it apart.

    That password has a character such as `/` or `#`, which ends the host, and would be taken for a port and a path.
    """
    try:
        parts = urlsplit(address)
        port = parts.port  # ValueError: no number, or too large
    except ValueError:
        return None
    cut_apart = ":" in parts.netloc and "@" not in parts.netloc and "@" in address
    return None if cut_apart or port == 0 or any(map(str.isspace, address)) else parts
