"""A run's model to the Hub: one commit, private unless said otherwise, and looked at again when it is there."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    ModelCard,
    ModelCardData,
    constants,
    errors,
    get_token,
)
from huggingface_hub.hf_api import RepoFile

from bertkit.errors import ModelError, Problem
from bertkit.files import MODEL_FILES, write_text
from bertkit.hub.payload import CARD, Item, item_of, payload
from bertkit.models.download import content_hash
from bertkit.models.hub_errors import FAILURES, LOGIN, WAITS, persistently, redacted, refuse, refused, wait
from bertkit.report.card import with_yours, yours
from bertkit.run import Run
from bertkit.sections import REPO_ID, Hub
from bertkit.text import columns

logger = logging.getLogger(__name__)

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Pushed:
    """What a push sent, or with `dry_run` would send. commit, url: None where nothing was sent."""

    repo_id: str
    files: list[Item]
    commit: str | None = None
    url: str | None = None  # of the commit, or of the pull request

    def table(self) -> str:
        """The files with their sizes in bytes and their sha256, for people."""
        return columns([["file", "bytes", "sha256"], *([f.path, f"{f.size:,}", f.sha256] for f in self.files)])


def push(
    source: str | Path,
    repo_id: str,
    *,
    public: bool = False,
    dry_run: bool = False,
    revision: str | None = None,
    create_pr: bool = False,
    predictions: bool = False,
    report: bool = False,
) -> Pushed:
    """Upload exactly the model folder of a finished run, in one commit, to a model repository of the Hub.

    The card is written anew first; what people wrote between its markers, here or at the Hub, stays.
    repo_id: owner/model. A new repository is private; with `public` it is made public, once all is there.
    dry_run: only look at what would be sent; nothing is asked of the network.
    revision: a branch, made where it is missing; by default main. create_pr: a pull request instead of a commit.
    predictions, report: RUN/predictions and RUN/report.html too. Files of an older model that a loader would take
    for this one's are deleted by the same commit. Raises ModelError; the message says what is at the Hub then.
    """
    problems = misnamed(repo_id, revision, create_pr)
    if problems:
        raise ModelError(problems)
    run = Run(Path(source).expanduser())
    files = payload(run, repo_id, predictions=predictions, report=report)
    problems = unlicensed(run.recipe.hub, public, f"{run.folder}/recipe.yaml")
    if problems:
        raise ModelError(problems)
    if dry_run:
        return Pushed(repo_id, files)
    problems = unready()
    if problems:
        raise ModelError(problems)
    api = HfApi()
    before = "Nothing was changed at the Hub."
    try:
        _check_accepted(run.model / CARD)
        seen_by_all = _repository(api, repo_id, public, create_pr)
        before = f"{repo_id} has no new commit; where the repository is new, it is empty and private."
        if revision is not None:
            persistently(lambda: api.create_branch(repo_id, branch=revision, exist_ok=True))
        head = persistently(lambda: api.model_info(repo_id, revision=revision)).sha
        there = _hashes(api, repo_id, head)
        if CARD in there:
            _keep_theirs(api, repo_id, head, run.model / CARD, create_pr)
            files = [item_of(each.path, each.file) for each in files]
        operations = _operations(files, there)
        commit, url = _commit(api, repo_id, operations, revision, head, create_pr)
        before = f"The commit {commit} may not be whole; do not use it."
        _check_arrived(api, repo_id, commit, files)
        before = f"All files are there, in commit {commit}, but {repo_id} is still private."
        if public and not seen_by_all and not create_pr:
            persistently(lambda: api.update_repo_settings(repo_id, private=False))
    except FAILURES as error:
        refuse(error, "push", repo_id, before)
    logger.info("pushed %d files to %s, commit %s", len(files), repo_id, commit)
    return Pushed(repo_id, files, commit, url)


def unready() -> list[Problem]:
    """What would stop any push, as far as this machine knows."""
    if constants.is_offline_mode():
        return [Problem("push", "offline mode is on", "Unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE.")]
    return [] if get_token() else [Problem("push", "nobody is logged in to the Hub", LOGIN)]


def unlicensed(hub: Hub | None, public: bool, recipe: str = "the recipe") -> list[Problem]:
    """What is wrong where everybody is to see a model that nobody stated the licence of."""
    if not public or (hub and hub.license):
        return []
    fix = f"Write the model's into {recipe}, such as hub: {{license: apache-2.0}}, with what else stands under hub."
    return [Problem("push", "no licence is stated, and everybody would see the model", fix)]


def unaccepted(hub: Hub) -> list[Problem]:
    """What the Hub, which alone has the lists, has against licence and language; nothing where it can not be asked."""
    if not (hub.license or hub.language):
        return []
    stated = ModelCardData(license=hub.license, language=hub.language)
    try:
        ModelCard(f"---\n{stated.to_yaml()}\n---\n").validate()
    except ValueError as error:
        fix = "The Hub's names: https://huggingface.co/docs/hub/repositories-licenses"
        return [Problem("push", f"the Hub does not accept what the recipe states: {redacted(str(error))}", fix)]
    except FAILURES:  # a Hub that is unwell now may be well when there is something to push
        pass
    return []


def misnamed(repo_id: str, revision: str | None, create_pr: bool) -> list[Problem]:
    """What is wrong with where a push is to go, as far as names tell."""
    problems = []
    if not REPO_ID.fullmatch(repo_id):
        fix = "Write owner/model: letters, digits, -, _ and ."
        problems.append(Problem("push", f"{repo_id!r} can not be the name of a repository", fix))
    if create_pr and revision not in (None, "main"):
        problems.append(Problem("push", "a pull request goes to main, so --revision has no meaning with --create-pr"))
    if revision is not None and COMMIT.fullmatch(revision):
        problems.append(Problem("push", f"{revision} is a commit", "Name a branch: a push makes a commit of its own."))
    return problems


def _check_accepted(card: Path) -> None:
    """Ask the Hub about the card's metadata. Raises ModelError where it refuses them."""
    try:
        persistently(ModelCard.load(card).validate)
    except ValueError as error:
        raise ModelError(Problem(str(card), f"the Hub does not accept the card: {redacted(str(error))}")) from None


def _keep_theirs(api: HfApi, repo_id: str, commit: str | None, card: Path, create_pr: bool) -> None:
    """Write into our card what people wrote between the markers of the Hub's.

    Raises ModelError where both have something, and neither holds the other; or where the Hub's has no markers,
    except for a pull request, which people look at before it is merged.
    """
    where = f"{CARD} of {repo_id}"
    file = persistently(lambda: api.hf_hub_download(repo_id, CARD, revision=commit))
    there, text = Path(file).read_text(encoding="utf-8"), card.read_text(encoding="utf-8")
    try:
        theirs = yours(there, where)
    except ModelError:
        if not create_pr:
            raise
        return
    ours = yours(text, str(card))
    if ours not in theirs and theirs not in ours:
        what = f"{card} and {where} differ between the lines for what people add"
        raise ModelError(Problem("push", what, f"Write into {card} what is to stay, all that {where} has included."))
    write_text(card, with_yours(text, max(ours, theirs, key=len)))


def _repository(api: HfApi, repo_id: str, public: bool, create_pr: bool) -> bool:
    """See to it that the repository is there; is it public? Raises ModelError where nobody said that it may be."""
    try:
        known = persistently(lambda: api.model_info(repo_id))
    except errors.RepositoryNotFoundError as error:
        if create_pr or error.response.status_code == 401:
            raise
        persistently(lambda: api.create_repo(repo_id, private=True, exist_ok=True))
        return False
    if known.private is not True and not public:
        what, fix = f"{repo_id} is public: everybody would see the model", "Say --public, or name another repository."
        raise ModelError(Problem("push", what, fix))
    return known.private is not True


def _hashes(api: HfApi, repo_id: str, commit: str | None) -> dict[str, tuple[str, bool]]:
    """Path -> the Hub's hash, and whether it keeps the file apart as large; of every file of a commit."""
    tree = persistently(lambda: list(api.list_repo_tree(repo_id, revision=commit, recursive=True)))
    found = [entry for entry in tree if isinstance(entry, RepoFile)]
    return {f.path: (f.lfs.sha256, True) if f.lfs else (f.blob_id, False) for f in found}


def _operations(
    files: Sequence[Item], there: dict[str, tuple[str, bool]]
) -> list[CommitOperationAdd | CommitOperationDelete]:
    """Add what is of this model; delete what `load` would fetch and is not."""
    sent = {item.path for item in files}
    old = [path for path in there if path not in sent and any(fnmatch(path, pattern) for pattern in MODEL_FILES)]
    adding = [CommitOperationAdd(path_in_repo=item.path, path_or_fileobj=str(item.file)) for item in files]
    return [*adding, *(CommitOperationDelete(path_in_repo=path) for path in old)]


def _commit(
    api: HfApi,
    repo_id: str,
    operations: list[CommitOperationAdd | CommitOperationDelete],
    branch: str | None,
    parent: str | None,
    create_pr: bool,
) -> tuple[str, str]:
    """The commit's hash and its page, or the pull request's.

    The commit has a parent, so that a second try after a lost answer can not make it twice.
    """
    failure: Exception | None = None
    for seconds in (*WAITS, 0.0):
        try:
            made = api.create_commit(
                repo_id,
                operations,
                commit_message="Push by bertkit",
                revision=branch,
                create_pr=create_pr,
                parent_commit=parent,
            )
            return made.oid, made.pr_url or made.commit_url
        except FAILURES as error:
            if create_pr and not refused(error):  # a second pull request is worse than none
                refuse(error, "push", repo_id, f"Look whether {repo_id} has the pull request before you push again.")
            if create_pr:
                raise
            wait(error, seconds)
            failure = error
        try:
            head = persistently(lambda: api.model_info(repo_id, revision=branch)).sha
        except FAILURES as error:
            refuse(error, "push", repo_id, f"Look whether {repo_id} has a new commit before you push again.")
        if head is not None and head != parent:  # it is there, only its answer was lost; or it is somebody else's
            return head, f"{api.endpoint}/{repo_id}/commit/{head}"
    assert failure is not None
    raise failure


def _check_arrived(api: HfApi, repo_id: str, commit: str, files: Sequence[Item]) -> None:
    """Raises ModelError where the commit does not hold exactly the files that were sent."""
    there = _hashes(api, repo_id, commit)
    wrong = []
    for item in files:
        stated, large = there.get(item.path, ("", True))
        if stated != (item.sha256 if large else content_hash(item.file, large=False)):
            wrong.append(item.path)
    if wrong:
        what = f"commit {commit} of {repo_id} is not what was sent: {', '.join(wrong)}"
        raise ModelError(Problem("push", what, "Somebody else may have pushed at the same time. Push again."))
