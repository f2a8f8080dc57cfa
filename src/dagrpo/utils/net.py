"""Environment variables that keep processes computing together on this machine."""

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # else they listen where the host's name points to
