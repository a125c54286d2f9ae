"""moto's S3 server on a port of this machine, which can be told to fail."""

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

KEY = {"key": "me", "secret": "mine"}


class S3Server:
    """Serves until `close`. `faults` are asked before each request, and may answer it.

    A fault gets the WSGI environment and `start_response`. It returns the body of its answer; None:
    moto answers.
    """

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self._moto = DomainDispatcherApplication(create_backend_app)
        self.faults: list[Callable[..., Iterable[bytes] | None]] = []
        self.requests: list[tuple[str, str]] = []
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        for fault in list(self.faults):
            if (answer := fault(environ, start_response)) is not None:
                return answer
        return self._moto(environ, start_response)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._server.shutdown()


class ConfigIssue:
    """A fault of the first `count` requests of a method whose path and query match.

    Args:
        how: a status such as "503 Slow Down" (`code` is in the body), "hang" for `seconds`, or
            "cut": half of the body is read, then the connection is closed.
    """

    def __init__(
        self,
        method: str,
        path: str,
        how: str,
        code: str = "",
        count: int = 1 << 30,
        seconds: float = 0.0,
    ) -> None:
        self.method, self.path, self.how, self.code = method, re.compile(path), how, code
        self.seconds, self.left, self.done = seconds, count, 0
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes] | None:
        request = f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        with self._lock:
            is_meant = environ["REQUEST_METHOD"] == self.method and self.path.search(request)
            if not is_meant or not self.left:
                return None
            self.left, self.done = self.left - 1, self.done + 1
        if self.how == "cut":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0) // 2)
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return [b""]
        if self.how == "hang":
            time.sleep(self.seconds)
            return None
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response(self.how, [("Content-Type", "application/xml"), ("Connection", "close")])
        return [f"<Error><Code>{self.code}</Code><Message>{self.how}</Message></Error>".encode()]
