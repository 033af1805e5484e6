"""A Hub on 127.0.0.1: repositories with commits, branches, visibility and tokens, and faults on demand.

It speaks the part of the Hub's HTTP API that huggingface_hub 2.4 uses to push and to pull models. Files named
*.safetensors are kept apart as large files (git LFS), the rest in the commit, as the Hub does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

TOKEN = "hf_" + "OnlyForTheTestsOfBertkit" * 2


@dataclass
class Fault:
    """What happens to the first `times` requests `METHOD /path` that the pattern is found in.

    act: a status code with headers; or reset (the connection is torn while the body is read), short (a
    smaller body than is stated elsewhere).
    """

    pattern: str
    act: int | str
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Repo:
    """Commits: hash -> path -> content. Branches: name -> hash."""

    private: bool | None  # None: the Hub does not say
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    titles: list[str] = field(default_factory=list)  # one per commit but the first


def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def large(path):
    return path.endswith(".safetensors")


def stated_hash(path, content):
    return hashlib.sha256(content).hexdigest() if large(path) else git_sha1(content)


class FakeHub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}  # sha256 -> content, uploaded but perhaps in no commit
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.writers = {"me"}  # the owners that the token may write to
        self.lock = threading.RLock()

    def handle_error(self, request, client_address):
        """A client that goes away is no news."""

    def create(self, repo_id, *, private=True, files=None):
        """A repository with a first commit, as the Hub makes it."""
        first = {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n", **(files or {})}
        repo = self.repos[repo_id] = Repo(private)
        self.commit(repo, "main", first)
        return repo

    def commit(self, repo, branch, files):
        """A new commit of all these files, whose hash is theirs and its place's."""
        seed = repr([len(repo.commits), sorted((path, git_sha1(data)) for path, data in files.items())])
        sha = hashlib.sha1(seed.encode()).hexdigest()
        repo.commits[sha] = files
        repo.branches[branch] = sha
        return sha

    def files(self, repo_id, branch="main"):
        repo = self.repos[repo_id]
        return repo.commits[repo.branches[branch]]

    def fault(self, line):
        """The fault of this request, which is then used up."""
        with self.lock:
            self.requests.append(line)
            fault = next(
                (each for each in self.faults if each.times > 0 and re.search(each.pattern, line)), None
            )
            if fault:
                fault.times -= 1
            return fault


class Refused(Exception):
    """An answer that is an error: its status and message, and perhaps its code."""


Answer = tuple[int, bytes, dict[str, str]]


class Handler(BaseHTTPRequestHandler):
    """One request: read, spoilt or answered."""

    protocol_version = "HTTP/1.1"
    server: FakeHub

    def log_message(self, *_):
        """Nothing is printed."""

    def handle_request(self):
        path = unquote(urlparse(self.path).path)
        fault = self.server.fault(f"{self.command} {path}")
        if fault and fault.act == "reset":
            if self.headers.get("Content-Length") or self.headers.get("Transfer-Encoding"):
                self.rfile.read(1)
            return self.tear()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(self.chunks())
        if fault and isinstance(fault.act, int):
            echo = {"error": f"you sent {self.headers.get('Authorization')}"}  # a careless server
            return self.send(fault.act, json.dumps(echo).encode(), fault.headers)
        try:
            with self.server.lock:
                status, content, headers = self.route(path, body)
        except Refused as no:
            status, message, *_ = no.args
            told = dict(zip(("X-Error-Message", "X-Error-Code"), no.args[1:], strict=False))
            return self.send(status, json.dumps({"error": message}).encode(), told)
        if fault and fault.act == "short":
            content = content[: len(content) // 2]
        return self.send(status, content, headers)

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = handle_request

    def chunks(self):
        while size := int(self.rfile.readline().strip(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def tear(self):
        """Reset the connection: the other side gets ECONNRESET, not an end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.rfile.close()
        self.connection.close()

    def send(self, status, content, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    # --- the API

    def route(self, path, body):
        """The first pattern that fits answers."""
        sent = self.headers.get("Authorization", "")
        self.token = sent.removeprefix("Bearer ")
        if self.token and self.token != TOKEN and not path.startswith("/_large"):
            raise Refused(401, "Invalid credentials in Authorization header")
        name = r"([^/]+/[^/]+)"
        routes: list[tuple[str, Callable[..., Answer]]] = [
            (r"GET /api/whoami-v2", self.whoami),
            (r"POST /api/validate-yaml", self.validate),
            (r"POST /api/repos/create", self.create),
            (rf"PUT /api/models/{name}/settings", self.settings),
            (rf"POST /api/models/{name}/branch/(.+)", self.branch),
            (rf"POST /api/models/{name}/preupload/(.+)", self.preupload),
            (rf"POST /{name}\.git/info/lfs/objects/batch", self.batch),
            (r"PUT /_large/(\w+)", self.upload),
            (rf"POST /api/models/{name}/commit/(.+)", self.commit),
            (rf"GET /api/models/{name}/tree/([^/]+)", self.tree),
            (rf"GET /api/(?:models|datasets)/{name}(?:/revision/(.+))?", self.info),
            (rf"(?:GET|HEAD) /{name}/resolve/([^/]+)/(.+)", self.resolve),
        ]
        for pattern, answer in routes:
            if found := re.fullmatch(pattern, f"{self.command} {path}"):
                return answer(body, *found.groups())
        raise Refused(404, f"unknown {self.command} {path}")

    def json(self, value, **headers):
        return 200, json.dumps(value).encode(), {"Content-Type": "application/json", **headers}

    def repo(self, name, *, write=False):
        repo = self.server.repos.get(name)
        if repo is None or (repo.private and not self.token):
            raise Refused(404 if self.token else 401, "Repository not found", "RepoNotFound")
        if write and name.partition("/")[0] not in self.server.writers:
            raise Refused(403, f"Forbidden: no write access to {name}")
        return repo

    def sha(self, repo, revision):
        sha = repo.branches.get(revision, revision)
        if sha not in repo.commits:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return sha

    def validate(self, body):
        return self.json({"errors": [], "warnings": []})

    def whoami(self, body):
        if not self.token:
            raise Refused(401, "Invalid username or password.")
        return self.json({"type": "user", "name": "me"})

    def create(self, body):
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        self.whoami(body)
        if asked["organization"] not in self.server.writers:
            raise Refused(403, f"You don't have the rights to create a model under {asked['organization']}")
        if name in self.server.repos:
            return 409, json.dumps({"error": "exists", "url": f"{self.server.url}/{name}"}).encode(), {}
        self.server.create(name, private=is_private(asked))
        return self.json({"url": f"{self.server.url}/{name}", "name": name})

    def settings(self, body, name):
        self.repo(name, write=True).private = is_private(json.loads(body))
        return self.json({})

    def branch(self, body, name, branch):
        repo = self.repo(name, write=True)
        if branch in repo.branches:
            raise Refused(409, "Reference already exists")
        repo.branches[branch] = repo.branches["main"]
        return self.json({})

    def preupload(self, body, name, revision):
        repo = self.repo(name)
        files = repo.commits[self.sha(repo, revision)]
        modes = []
        for path in (each["path"] for each in json.loads(body)["files"]):
            oid = stated_hash(path, files[path]) if path in files else None
            mode = "lfs" if large(path) else "regular"
            modes.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return self.json({"files": modes})

    def batch(self, body, name):
        self.repo(name, write=True)
        objects = json.loads(body)["objects"]
        for each in objects:
            if each["oid"] not in self.server.blobs:
                each["actions"] = {"upload": {"href": f"{self.server.url}/_large/{each['oid']}"}}
        return self.json({"transfer": "basic", "objects": objects})

    def upload(self, body, oid):
        if hashlib.sha256(body).hexdigest() != oid:
            raise Refused(400, "the sha256 differs")
        self.server.blobs[oid] = body
        return 200, b"", {}

    def commit(self, body, name, branch):
        repo = self.repo(name, write=True)
        lines = [json.loads(line) for line in body.decode().splitlines()]
        head = self.sha(repo, branch)
        if lines[0]["value"].get("parentCommit", head) != head:
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        files = dict(repo.commits[head])
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            else:
                del files[value["path"]]
        sha = self.server.commit(repo, branch, files)
        repo.titles.append(lines[0]["value"]["summary"])
        return self.json(
            {"success": True, "commitOid": sha, "commitUrl": f"{self.server.url}/{name}/commit/{sha}"}
        )

    def tree(self, body, name, revision):
        repo = self.repo(name)
        entries = []
        for path, data in repo.commits[self.sha(repo, revision)].items():
            entry = {"type": "file", "path": path, "oid": git_sha1(data), "size": len(data)}
            if large(path):
                entry["lfs"] = {
                    "oid": hashlib.sha256(data).hexdigest(),
                    "size": len(data),
                    "pointerSize": 130,
                }
            entries.append(entry)
        return self.json(entries)

    def info(self, body, name, revision):
        repo = self.repo(name)
        sha = self.sha(repo, revision or "main")
        siblings = [{"rfilename": path} for path in repo.commits[sha]]
        told = {"_id": "0", "id": name, "sha": sha, "private": repo.private, "siblings": siblings, "tags": []}
        return self.json(told)

    def resolve(self, body, name, revision, path):
        repo = self.repo(name)
        sha = self.sha(repo, revision)
        if path not in repo.commits[sha]:
            raise Refused(404, "Entry not found", "EntryNotFound")
        data = repo.commits[sha][path]
        return 200, data, {"X-Repo-Commit": sha, "ETag": f'"{stated_hash(path, data)}"'}


def is_private(asked):
    """Whether a request asks for a private repository: in the words of huggingface_hub 2, or of earlier
    ones.
    """
    return bool(asked.get("private", asked.get("visibility") == "private"))


@contextmanager
def running():
    """A Hub for the length of the block, on a free port."""
    hub = FakeHub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
