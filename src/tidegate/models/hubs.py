"""Hugging Face and ModelScope: what files a repository has, where each is fetched, and which hub answers first."""

import queue
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

import httpx

from tidegate import __version__
from tidegate.config import HubEnvironment
from tidegate.errors import DownloadError, SettingError
from tidegate.models.catalogue import HubName

HUGGING_FACE = "https://huggingface.co"
MODELSCOPE = "https://www.modelscope.cn"
ANSWER_WITHIN_S = 3.0
"""A hub that has not answered by then is not asked further."""

REPOSITORY_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
USER_AGENT = f"tidegate/{__version__}"


class NoRepositoryError(DownloadError):
    """Hubs answered, and none has the repository: another one may be asked for at once."""


@dataclass(frozen=True)
class HubFile:
    """A file of a repository, with what its hub says it must be."""

    path: str
    size_bytes: int
    sha256: str = ""
    git_sha1: str = ""
    """SHA-1 of the git blob, where the hub has no SHA-256 (Hugging Face's small files)."""


@dataclass(frozen=True)
class Repository:
    """A repository as one hub has it now."""

    hub: "Hub"
    id: str
    revision: str
    licence: str
    files: tuple[HubFile, ...]

    def matching(self, *suffixes: str) -> tuple[HubFile, ...]:
        return tuple(file for file in self.files if file.path.lower().endswith(suffixes))

    def url(self, file: HubFile) -> str:
        return self.hub.file_url(self.id, self.revision, file.path)


class Hub(Protocol):
    """A hub of models."""

    @property
    def name(self) -> HubName: ...

    @property
    def base(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def listing_url(self, repository: str) -> str: ...

    def file_url(self, repository: str, revision: str, path: str) -> str: ...

    def parse(self, repository: str, answer: Any) -> Repository:
        """The repository in the hub's answer. Raises KeyError, TypeError or ValueError where it is none."""


@dataclass(frozen=True)
class HuggingFace:
    """https://huggingface.co/docs/hub/api, and its mirrors."""

    base: str = HUGGING_FACE
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: HubName = "huggingface"

    def listing_url(self, repository: str) -> str:
        return f"{self.base}/api/models/{quote(repository)}?blobs=true"

    def file_url(self, repository: str, revision: str, path: str) -> str:
        return f"{self.base}/{quote(repository)}/resolve/{quote(revision)}/{quote(path)}"

    def parse(self, repository: str, answer: Any) -> Repository:
        files = []
        for entry in answer["siblings"]:
            lfs = entry.get("lfs") or {}
            size = lfs.get("size", entry.get("size"))
            files.append(
                HubFile(
                    path=safe_path(entry["rfilename"]),
                    size_bytes=int(size),
                    sha256=str(lfs.get("sha256") or lfs.get("oid") or "").removeprefix("sha256:"),
                    git_sha1="" if lfs else str(entry.get("blobId") or ""),
                )
            )
        licence = str((answer.get("cardData") or {}).get("license") or "")
        return Repository(self, repository, str(answer["sha"]), licence, tuple(files))


@dataclass(frozen=True)
class ModelScope:
    """https://www.modelscope.cn, as its own client speaks to it."""

    base: str = MODELSCOPE
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    name: HubName = "modelscope"

    def listing_url(self, repository: str) -> str:
        return f"{self.base}/api/v1/models/{quote(repository)}/repo/files?Revision=master&Recursive=true"

    def file_url(self, repository: str, revision: str, path: str) -> str:
        query = urlencode({"Revision": revision, "FilePath": path})
        return f"{self.base}/api/v1/models/{quote(repository)}/repo?{query}"

    def parse(self, repository: str, answer: Any) -> Repository:
        files = tuple(
            HubFile(path=safe_path(entry["Path"]), size_bytes=int(entry["Size"]), sha256=str(entry.get("Sha256") or ""))
            for entry in answer["Data"]["Files"]
            if entry.get("Type", "blob") != "tree"
        )
        return Repository(self, repository, "master", "", files)


def safe_path(path: str) -> str:
    """`path` if it stays within its folder; ValueError otherwise: a hub's names are not to be trusted."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path or ":" in parts[0]:
        raise ValueError(f"the file name {path!r} leaves its folder")
    return path


def hubs_for(environment: HubEnvironment) -> tuple[Hub, ...]:
    """The hubs to ask: both, or what the environment names. Raises SettingError."""
    token = {"authorization": f"Bearer {environment.hf_token}"} if environment.hf_token else {}
    hugging_face = HuggingFace(_base(environment.hf_endpoint or HUGGING_FACE, "HF_ENDPOINT"), token)
    match environment.hub.casefold():
        case "":
            return (hugging_face, ModelScope())
        case "hf" | "huggingface":
            return (hugging_face,)
        case "modelscope" | "ms":
            return (ModelScope(),)
        case _:
            base = _base(environment.hub, "TIDEGATE_HUB")
            # A mirror may speak either hub's language; its operator is not Hugging Face, and gets no token of theirs.
            return (HuggingFace(base), ModelScope(base))


def _base(url: str, variable: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise SettingError(
            variable, f"{url!r} is not a hub", hint="write hf, modelscope, or a URL as in https://hub.example.com"
        )
    return url.rstrip("/")


def client(hub: Hub, *, timeout_s: float = ANSWER_WITHIN_S) -> httpx.Client:
    """A client for one hub. httpx drops the token by itself when a hub sends on to another host."""
    return httpx.Client(
        headers={"user-agent": USER_AGENT, **hub.headers},
        timeout=httpx.Timeout(timeout_s, connect=ANSWER_WITHIN_S),
        follow_redirects=True,
    )


def first_to_answer(
    hubs: Sequence[Hub], ids: Mapping[HubName, str], *, within_s: float = ANSWER_WITHIN_S
) -> Repository:
    """Ask every hub side by side for its repository; the first one that has it serves.

    Raises DownloadError with each hub's reason when none answers within `within_s` seconds. A hub that hangs, even in
    the look-up of its name, is left behind in a daemon thread.
    """
    asked = [hub for hub in hubs if hub.name in ids]
    answers: queue.SimpleQueue[tuple[Hub, Repository | _Refusal]] = queue.SimpleQueue()
    for hub in asked:
        threading.Thread(target=lambda h=hub: answers.put((h, _ask(h, ids[h.name], within_s))), daemon=True).start()
    reasons = {_label(hub): f"no answer within {within_s:g} s" for hub in asked}
    missing = False
    deadline = time.monotonic() + within_s
    for _ in asked:
        try:
            hub, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(answer, Repository):
            return answer
        reasons[_label(hub)] = answer.reason
        missing = missing or answer.missing
    what = " or ".join(dict.fromkeys(ids[hub.name] for hub in asked)) or "the model"
    told = "; ".join(f"{where}: {reason}" for where, reason in reasons.items()) or "no hub was asked"
    kind = NoRepositoryError if missing else DownloadError
    raise kind(
        f"no hub gave {what} ({told})",
        hint="check the network or a proxy (HTTPS_PROXY), or name a mirror with TIDEGATE_HUB=hf|modelscope|URL or HF_ENDPOINT",
    )


def _label(hub: Hub) -> str:
    return f"{hub.name} at {urlsplit(hub.base).netloc}"


@dataclass(frozen=True)
class _Refusal:
    reason: str
    missing: bool = False


def _ask(hub: Hub, repository: str, within_s: float) -> Repository | _Refusal:
    """The repository, or the reason why there is none."""
    try:
        with client(hub, timeout_s=within_s) as http:
            answer = http.get(hub.listing_url(repository))
        if answer.status_code in {401, 403, 404}:
            return _Refusal(f"it has no {repository} for you (HTTP {answer.status_code})", missing=True)
        if answer.status_code != 200:
            return _Refusal(f"HTTP {answer.status_code}")
        return hub.parse(repository, answer.json())
    except httpx.TimeoutException:
        return _Refusal(f"no answer within {within_s:g} s")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return _Refusal(str(error) or type(error).__name__)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return _Refusal(f"its answer is not a list of files ({error})")
