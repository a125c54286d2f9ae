"""A stand-in for a W&B server: what the real client needs of GraphQL, of the file stream and of
file uploads.

It keeps a run's history as the protocol has it: lines that the client addresses by offset. How the
real server treats a step that is sent twice is not modelled; tests look at whether one ever is.
"""

import gzip
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.local_server import LocalServer

PROJECT = {"id": "p1", "name": "project", "entity": {"id": "e1", "name": "me"}}
INFO = {"cliVersionInfo": {"max_cli_version": "99"}, "latestLocalVersionInfo": None, "features": []}
VIEWER = {
    "id": "u1",
    "entity": "me",
    "username": "me",
    "email": "a@b",
    "flags": "{}",
    "teams": {"edges": []},
}


class WandbServer(LocalServer):
    """Used by `with`.

    `runs` has what arrived, by run id; `mode` is ok, 403, hang or "no uploads"; `stopped`: somebody
    pressed "Stop run".
    """

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self.artifacts: list[dict[str, Any]] = []
        self.mode, self.stopped = "ok", False
        self._lock = threading.RLock()
        super().__init__(_Handler, _Server)

    def run(self, name: str) -> dict[str, Any]:
        empty = {"history": [], "events": [], "summary": {}, "config": {}, "started": False}
        return self.runs.setdefault(
            name, {**empty, "upsert": {}, "exit": None, "preempting": False, "overwritten": 0}
        )

    def answer(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            operation = re.search(r"(query|mutation)\s+(\w+)", query)
            method = getattr(self, f"on_{operation[2]}", None) if operation else None
            if method is not None:
                return method(given)
            return {"viewer": VIEWER, "serverInfo": INFO} if "viewer" in query else {}

    def on_ServerFeaturesQuery(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"serverInfo": {"features": []}}

    def on_RunResumeStatus(self, given: dict[str, Any]) -> dict[str, Any]:
        run, bucket = self.runs.get(given["name"]), None
        if run and run["started"]:
            tails = {
                f"{key}Tail": json.dumps([json.dumps(x) for x in run[key][-1:]])
                for key in ("history", "events")
            }
            bucket = {
                "id": f"s-{given['name']}", "name": given["name"],
                "summaryMetrics": json.dumps(run["summary"]),
                "displayName": given["name"], "logLineCount": 0,
                "config": json.dumps(run["config"]),
                "historyLineCount": len(run["history"]), "eventsLineCount": len(run["events"]),
                **tails,
                "tags": [], "notes": None, "wandbConfig": json.dumps({"t": 1}),
            }  # fmt: skip
        return {"model": {**PROJECT, "bucket": bucket}}

    def on_UpsertBucket(self, given: dict[str, Any]) -> dict[str, Any]:
        name = given["name"] or given["id"].removeprefix("s-")
        run = self.run(name)
        inserted, run["started"] = not run["started"], True
        run["upsert"] |= {key: value for key, value in given.items() if value is not None}
        run["config"] = json.loads(given["config"]) if given.get("config") else run["config"]
        bucket = {
            "id": f"s-{name}", "name": name, "displayName": given.get("displayName") or name,
            "description": None,
            "config": json.dumps(run["config"]), "sweepName": None, "project": PROJECT,
            "historyLineCount": len(run["history"]),
        }  # fmt: skip
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def on_Run(self, given: dict[str, Any]) -> dict[str, Any]:
        run = self.runs[given["name"]]
        keys = {"lastStep": run["history"][-1]["_step"] if run["history"] else -1, "keys": {}}
        bucket = {
            "id": "s", "projectId": 1, "tags": [], "name": given["name"], "historyKeys": keys,
            "displayName": given["name"], "sweepName": None, "state": "finished", "config": "{}",
            "group": None, "jobType": None, "commit": None, "readOnly": False, "notes": None,
            "createdAt": "2026-01-01T00:00:00", "heartbeatAt": "2026-01-01T00:00:00",
            "description": None, "systemMetrics": "{}", "summaryMetrics": "{}", "user": VIEWER,
            "historyLineCount": len(run["history"]),
        }  # fmt: skip
        return {"project": {"run": bucket}}

    on_RunHistoryKeys = on_Run

    def on_CreateRunFiles(self, given: dict[str, Any]) -> dict[str, Any]:
        files = [
            {"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in given["files"]
        ]
        return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}}

    def on_ArtifactType(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"project": {"artifact": None}}

    def on_CreateArtifact(self, given: dict[str, Any]) -> dict[str, Any]:
        self.artifacts.append(given["input"])
        artifact = {"id": "a1", "state": "PENDING", "artifactSequence": {"latestArtifact": None}}
        return {"createArtifact": {"artifact": artifact}}

    def on_CreateArtifactManifest(self, given: dict[str, Any]) -> dict[str, Any]:
        file = {"id": "f1", "uploadUrl": f"{self.url}/manifest", "uploadHeaders": []}
        return {"createArtifactManifest": {"artifactManifest": {"id": "m1", "file": file}}}

    def on_CreateArtifactFiles(self, given: dict[str, Any]) -> dict[str, Any]:
        names = [file["name"] for file in given["input"]["artifactFiles"]]
        nodes = [
            {
                "storagePath": name, "uploadUrl": f"{self.url}/artifact/{name}",
                "uploadHeaders": [],
                "uploadMultipartUrls": None, "artifact": {"id": "a1"},
            }
            for name in names
        ]  # fmt: skip
        return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}

    def on_CommitArtifact(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"commitArtifact": {"artifact": {"id": "a1", "digest": "d"}}}

    def stream(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            run = self.run(name)
            for file, chunk in (request.get("files") or {}).items():
                self._add(run, file, chunk)
            if request.get("complete"):
                run["exit"] = request.get("exitcode")
            run["preempting"] = run["preempting"] or bool(request.get("preempting"))
            return {"limits": {}, "exitcode": None} | ({"stopped": True} if self.stopped else {})

    def _add(self, run: dict[str, Any], file: str, chunk: dict[str, Any]) -> None:
        offset, content = chunk["offset"], chunk["content"]
        if file == "wandb-summary.json":
            run["summary"] = json.loads(content[-1])
        else:
            key = {"wandb-history.jsonl": "history", "wandb-events.jsonl": "events"}[file]
            run["overwritten"] += len(run[key]) > offset
            run[key][offset : offset + len(content)] = map(json.loads, content)


class _Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: WandbServer

    def log_message(self, *arguments: object) -> None:
        pass

    def do_PUT(self) -> None:
        body = self._body()
        if self.owner.mode == "no uploads":
            while self.owner.mode == "no uploads":
                time.sleep(0.05)
            self.close_connection = True
        elif self._is_up():
            self.owner.files[self.path] = body
            self._reply({})

    def do_POST(self) -> None:
        body = self._body()
        if not self._is_up():
            return
        if self.path.startswith("/graphql"):
            request = json.loads(body)
            self._reply(
                {"data": self.owner.answer(request["query"], request.get("variables") or {})}
            )
        else:
            self._reply(self.owner.stream(self.path.split("/")[4], json.loads(body)))

    def _is_up(self) -> bool:
        while self.owner.mode == "hang":
            time.sleep(0.05)
        if self.owner.mode == "403":
            self._reply({"error": "forbidden"}, 403)
        return self.owner.mode in ("ok", "no uploads")

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _reply(self, content: dict[str, Any], code: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
