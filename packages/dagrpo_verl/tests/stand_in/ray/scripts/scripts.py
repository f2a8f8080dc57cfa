"""Stand-in for the command `ray start --block`: a head, or a node that ends with it."""

import argparse
import json
import sys
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

from ray import connected, token


class Head(ThreadingTCPServer):
    """Head with the addresses of the nodes whose connections are open."""

    daemon_threads = True
    nodes: list[str]


class Handler(StreamRequestHandler):
    def handle(self) -> None:
        given, joins = json.loads(self.rfile.readline())
        server = self.server
        assert isinstance(server, Head)
        assert given == token()
        if not joins:
            self.wfile.write(f"{json.dumps(server.nodes)}\n".encode())
            return
        server.nodes.append(joins)
        self.rfile.read()
        server.nodes.remove(joins)


def main(words: list[str]) -> None:
    """Run until a signal comes, or the head is gone."""
    parser = argparse.ArgumentParser()
    for name in ("node-ip-address", "address", "temp-dir"):
        parser.add_argument(f"--{name}")
    for name in ("port", "ray-client-server-port", "num-gpus", "num-cpus"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("head", "block", "disable-usage-stats"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--include-dashboard", choices=["false"])
    given = parser.parse_args(words)
    Path(given.temp_dir).mkdir()
    assert given.block
    assert given.num_gpus
    if given.head:
        with Head((given.node_ip_address, given.port), Handler) as head:
            head.nodes = [given.node_ip_address]
            place = f"{given.node_ip_address}:{head.server_address[1]}"
            (Path(given.temp_dir) / "ray_current_cluster").write_text(place)
            head.serve_forever()
    with connected(given.address, given.node_ip_address) as connection:
        connection.recv(1)
    sys.exit("the head is gone")


if __name__ == "__main__":
    assert sys.argv[1] == "start"
    main(sys.argv[2:])
