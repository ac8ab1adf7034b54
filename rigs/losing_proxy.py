"""Proxy before a storage server that loses answers: what is asked for is done, and the connection ends without a word.

    python -m rigs.losing_proxy PORT SERVERS-PORT FOLDER

The answer to a PUT is lost when FOLDER holds a file with the name of the object, which is removed then.
"""

from __future__ import annotations

import http.client
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WITHIN_S = 60.0
OF_CONNECTION = ("transfer-encoding", "content-length", "connection", "date", "server")


class Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[2]), timeout=WITHIN_S)
        # The header `host` is the proxy's, as it was signed.
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        due = Path(sys.argv[3], self.path.rpartition("/")[2])
        if self.command == "PUT" and due.is_file():
            due.unlink()
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in OF_CONNECTION:
                self.send_header(name, value)
        length = reply.getheader("content-length") if self.command == "HEAD" else str(len(content))
        self.send_header("content-length", length or "0")
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing of requests."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    server.daemon_threads = True
    print("listening", flush=True)
    server.serve_forever()
