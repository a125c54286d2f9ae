"""A webhook: keeps the messages that Apprise posts as JSON (json://localhost:PORT)."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Webhook:
    """Used by `with`. `messages` has what arrived; `status` is the answer."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.status = 200
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if webhook.status == 200:
                    webhook.messages.append(json.loads(body))
                self.send_response(webhook.status)
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"json://me:hunter2@localhost:{self.server.server_port}/"

    @property
    def titles(self) -> list[str]:
        return [message["title"].partition(": ")[2] for message in self.messages]

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.shutdown()
        self.server.server_close()
