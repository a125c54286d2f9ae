"""A server of this process, for a real client."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class LocalServer:
    """Used by `with`. Its handlers have it as `owner`, and `url` is its address."""

    def __init__(
        self,
        handler: type[BaseHTTPRequestHandler],
        server: type[ThreadingHTTPServer] = ThreadingHTTPServer,
    ) -> None:
        self._server = server(("127.0.0.1", 0), type("Handler", (handler,), {"owner": self}))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
