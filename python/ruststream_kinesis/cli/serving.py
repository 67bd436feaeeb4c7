"""A few texts over HTTP, for one developer's browser."""

from __future__ import annotations

import signal
import socket
import socketserver
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

__all__ = ["Text", "serve_texts"]

# A browser that opens a connection and says nothing does not hold a thread for ever.
_SILENCE = 30.0


@dataclass(frozen=True, slots=True)
class Text:
    """What is at a path."""

    content_type: str
    text: str


def serve_texts(
    texts: Mapping[str, Text], host: str, port: int, listening: Callable[[str], object]
) -> None:
    """Serves until Ctrl-C or SIGTERM, and returns then.

    Args:
        texts: By path.
        host: Address or name to listen on.
        port: Port; 0 takes a free one.
        listening: Called with the address of the page.

    Raises:
        OSError: It cannot listen there; the message names the address.
    """

    class Handler(_Handler):
        served = texts

    class Server(socketserver.ThreadingTCPServer):
        # Where the last one has just ended, its port is free again.
        allow_reuse_address = True
        # A browser's open connection does not keep the process.
        daemon_threads = True

    try:
        Server.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        server = Server((host, port), Handler)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    with server:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            shown = f"[{host}]" if ":" in host else host
            listening(f"http://{shown}:{server.server_address[1]}/")
            server.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGTERM, before)


class _Handler(BaseHTTPRequestHandler):
    served: Mapping[str, Text]
    timeout = _SILENCE

    def do_GET(self) -> None:
        self._answer(whole=True)

    def do_HEAD(self) -> None:
        self._answer(whole=False)

    def _answer(self, *, whole: bool) -> None:
        found = self.served.get(self.path.partition("?")[0])
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = found.text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{found.content_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        # The application is imported once; a page of an earlier one is not to be seen.
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if whole:
            self.wfile.write(body)

    def version_string(self) -> str:
        """Nothing of the interpreter and its version."""
        return "ruststream-kinesis"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
        """Says nothing: who reads the page sees that it came."""
