"""A stand-in for the Hugging Face Hub: what the real client needs to push files.

It checks the token of each request, the hash of each large file, and that a commit names only large
files that have arrived.
"""

import base64
import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from support.local_server import LocalServer


class HubServer(LocalServer):
    """Used by `with`. `files` has what the repository holds, `commits` the summary of each."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.files: dict[str, bytes] = {}
        self.large: set[str] = set()
        self.blobs: dict[str, bytes] = {}
        self.commits: list[str] = []
        self.created: list[dict[str, Any]] = []
        super().__init__(_Handler)

    @property
    def sha(self) -> str:
        return hashlib.sha1(f"commit {len(self.commits)}".encode()).hexdigest()

    def object_id(self, path: str) -> str | None:
        if path not in self.files:
            return None
        content = self.files[path]
        if path in self.large:
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def answer(self, path: str, body: bytes) -> Any:
        if path == "/api/repos/create":
            self.created.append(json.loads(body))
            return {"url": f"{self.url}/lab/net", "name": "lab/net"}
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if "/preupload/" in path:
            asked = [file["path"] for file in json.loads(body)["files"]]
            return {"files": [self._mode(name) for name in asked]}
        if path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            return {"transfer": "basic", "objects": [self._upload(one) for one in objects]}
        if "/commit/" in path:
            return self._commit([json.loads(line) for line in body.splitlines()])
        if re.search(r"/tree/", path):
            return [
                {"type": "file", "path": name, "size": len(content), "oid": self.object_id(name)}
                for name, content in self.files.items()
            ]
        siblings = [{"rfilename": name} for name in self.files]
        return {"id": "lab/net", "sha": self.sha, "private": True, "siblings": siblings}

    def _mode(self, name: str) -> dict[str, Any]:
        mode = "lfs" if name.endswith(".safetensors") else "regular"
        known = {"path": name, "uploadMode": mode, "shouldIgnore": False}
        return {**known, "oid": self.object_id(name)}

    def _upload(self, one: dict[str, Any]) -> dict[str, Any]:
        action = {"upload": {"href": f"{self.url}/storage/{one['oid']}"}}
        return one if one["oid"] in self.blobs else {**one, "actions": action}

    def _commit(self, lines: list[dict[str, Any]]) -> dict[str, Any]:
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.commits.append(value["summary"])
            elif line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.files[value["path"]] = self.blobs[value["oid"]]
                self.large.add(value["path"])
                assert value["size"] == len(self.files[value["path"]])
            else:
                del self.files[value["path"]]
        url = f"{self.url}/lab/net/commit/{self.sha}"
        return {"commitUrl": url, "commitOid": self.sha, "success": True}


class _Handler(BaseHTTPRequestHandler):
    owner: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, body = urlsplit(self.path).path, self._body()
        if self.headers.get("Authorization") != f"Bearer {self.owner.token}":
            return self._send({"error": "Invalid username or password."}, 401)
        return self._send(self.owner.answer(path, body))

    do_POST = do_GET

    def do_PUT(self) -> None:
        """Take a large file, to which the client sends no token."""
        content, name = self._body(), self.path.rpartition("/")[2]
        if hashlib.sha256(content).hexdigest() != name:
            return self._send({"error": "another hash"}, 400)
        self.owner.blobs[name] = content
        return self._send({})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def _send(self, answer: Any, status: int = 200) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        """Print nothing."""
