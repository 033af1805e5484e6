"""Upload a run's model to the Hub in one commit, private by default."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, errors, get_token

from bertkit.errors import ModelError, Problem
from bertkit.files import MODEL_FILES, write_text
from bertkit.hub.payload import CARD, payload
from bertkit.models.download import FAILURES, LOGIN, hub_error
from bertkit.report.card import with_yours, yours
from bertkit.run import Run
from bertkit.sections import REPO_ID, Hub
from bertkit.text import columns

logger = logging.getLogger(__name__)

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Pushed:
    """The uploaded files; with `dry_run` those that would be. commit, url: None where nothing was sent."""

    repo_id: str
    files: dict[str, Path]  # path in the repository -> local file
    commit: str | None = None
    url: str | None = None  # of the commit

    def table(self) -> str:
        """The files with their sizes in bytes, for people."""
        return columns([["file", "bytes"], *([path, f"{file.stat().st_size:,}"] for path, file in self.files.items())])


def push(
    source: str | Path, repo_id: str, *, public: bool = False, dry_run: bool = False, revision: str | None = None
) -> Pushed:
    """Upload the files of a finished run's model, in one commit, to a model repository of the Hub.

    The card is generated again first; text between its markers, here or on the Hub, stays.
    repo_id: owner/model. A new repository is private; with `public` it is made public, after the upload.
    dry_run: only list the files; no request is made.
    revision: a branch, created if it is missing; by default main.
    Files of an older model that a loader would mistake for this one's are deleted by the same commit. Raises
    ModelError; the message gives the state on the Hub.
    """
    if problems := target_problems(repo_id, revision):
        raise ModelError(problems)
    run = Run(Path(source).expanduser())
    files = payload(run, repo_id)
    problems = license_problems(run.recipe.hub, public, f"{run.folder}/recipe.yaml")
    if problems := [*problems, *([] if dry_run else login_problems())]:
        raise ModelError(problems)
    if dry_run:
        return Pushed(repo_id, files)
    api, state = HfApi(), "Nothing was changed on the Hub."
    try:
        was_public = _repository(api, repo_id, public)
        state = f"A new repository {repo_id} is private. Check whether it has a new commit before you push again."
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        head = api.model_info(repo_id, revision=revision).sha
        remote = api.list_repo_files(repo_id, revision=head)
        if CARD in remote:
            _merge_card(api, repo_id, head, run.model / CARD)
        commit = api.create_commit(
            repo_id,
            _operations(files, remote),
            commit_message="Push by bertkit",
            revision=revision,
            parent_commit=head,  # a commit of somebody else in between is an error
        )
        state = f"All files are there, in commit {commit.oid}, but {repo_id} is still private."
        if public and not was_public:
            api.update_repo_settings(repo_id, private=False)
    except FAILURES as error:
        raise hub_error(error, "push", repo_id, state) from None
    logger.info("pushed %d files to %s, commit %s", len(files), repo_id, commit.oid)
    return Pushed(repo_id, files, commit.oid, commit.commit_url)


def login_problems() -> list[Problem]:
    """Why this machine cannot push at all: offline mode, no token."""
    if constants.is_offline_mode():
        return [Problem("push", "offline mode is on", "Unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE.")]
    return [] if get_token() else [Problem("push", "not logged in to the Hub", LOGIN)]


def license_problems(hub: Hub | None, public: bool, recipe: str = "the recipe") -> list[Problem]:
    """A public model needs a licence."""
    if not public or (hub and hub.license):
        return []
    fix = f"Add the model's to {recipe}, such as hub: {{license: apache-2.0}}, next to the other keys of hub."
    return [Problem("push", "a public model needs a licence, and none is stated", fix)]


def target_problems(repo_id: str, revision: str | None) -> list[Problem]:
    """Problems with the names of repository and revision."""
    problems = []
    if not REPO_ID.fullmatch(repo_id):
        fix = "Write owner/model: letters, digits, -, _ and ."
        problems.append(Problem("push", f"{repo_id!r} is not a valid repository id", fix))
    if revision is not None and COMMIT.fullmatch(revision):
        problems.append(Problem("push", f"{revision} is a commit", "Name a branch: a push makes its own commit."))
    return problems


def _merge_card(api: HfApi, repo_id: str, commit: str | None, card: Path) -> None:
    """Copy the text between the markers of the Hub's card into ours.

    Raises ModelError where both have text and neither contains the other; or where the Hub's card has no markers.
    """
    where = f"{CARD} of {repo_id}"
    file = api.hf_hub_download(repo_id, CARD, revision=commit)
    remote, text = Path(file).read_text(encoding="utf-8"), card.read_text(encoding="utf-8")
    theirs, ours = yours(remote, where), yours(text, str(card))
    if ours not in theirs and theirs not in ours:
        what = f"{card} and {where} differ between the lines for what people add"
        raise ModelError(Problem("push", what, f"Write the final text into {card}, including all of {where}."))
    write_text(card, with_yours(text, max(ours, theirs, key=len)))


def _repository(api: HfApi, repo_id: str, public: bool) -> bool:
    """Create the repository if needed; returns whether it is public. Raises ModelError if that was not requested."""
    try:
        known = api.model_info(repo_id)
    except errors.RepositoryNotFoundError as error:
        if error.response.status_code == 401:
            raise
        api.create_repo(repo_id, private=True, exist_ok=True)
        return False
    if known.private is not True and not public:
        what, fix = f"{repo_id} is public, so the model would be too", "Add --public, or name another repository."
        raise ModelError(Problem("push", what, fix))
    return known.private is not True


def _operations(files: Mapping[str, Path], remote: Iterable[str]) -> list[CommitOperationAdd | CommitOperationDelete]:
    """Add the files of this model; delete others that `load` would download."""
    old = [path for path in remote if path not in files and any(fnmatch(path, pattern) for pattern in MODEL_FILES)]
    adding = [CommitOperationAdd(path_in_repo=path, path_or_fileobj=str(file)) for path, file in files.items()]
    return [*adding, *(CommitOperationDelete(path_in_repo=path) for path in old)]
