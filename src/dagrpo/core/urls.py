"""Parser of user-supplied addresses of servers and databases."""

from urllib.parse import SplitResult, urlsplit

SERVER_SCHEMES = frozenset({"http", "https"})


def parts_of(address: str) -> SplitResult | None:
    """Return an address's parts; None if its host or port is invalid, or a password cuts it apart.

    Such a password has a character such as `/` or `#`, which ends the host, and would be taken for a port and a path.
    """
    try:
        parts = urlsplit(address)
        port = parts.port  # ValueError: no number, or too large
    except ValueError:
        return None
    cut_apart = ":" in parts.netloc and "@" not in parts.netloc and "@" in address
    return None if cut_apart or port == 0 or " " in address or not address.isprintable() else parts


def mistake_in_server(address: str) -> str | None:
    """Return what makes an address unfit for a parameter that names an HTTP server, as the rest of a sentence; None if it fits.

    The address is not quoted: it may hold a password.
    """
    parts = parts_of(address)
    if parts is None or parts.scheme not in SERVER_SCHEMES or not parts.hostname:
        return "is not one"
    if "@" in parts.netloc:
        return "has a user or a password, which would be recorded"
    return "has more than a host, a port and a path" if parts.query or parts.fragment else None
