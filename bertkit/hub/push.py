"""Upload a run's model to the Hub in one commit, private by default."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, errors, get_token

from bertkit.errors import ModelError, Problem
from bertkit.files import write_text
from bertkit.hub.payload import CARD, READ, fits, payload
from bertkit.models.download import FAILURES, LOGIN, hub_error
from bertkit.recipe.recipe import Recipe
from bertkit.report.card import hub_id, with_yours, yours
from bertkit.run import Run
from bertkit.sections import REPO_ID, Hub
from bertkit.text import columns

logger = logging.getLogger(__name__)

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Pushed:
    """The files of a push; with `dry_run` those that there would be. commit, url: None where nothing was
    sent.

    deleted: paths in the repository; None where the Hub could not be asked.
    """

    repo_id: str
    files: dict[str, Path]  # path in the repository -> local file
    deleted: Sequence[str] | None
    commit: str | None = None
    url: str | None = None  # of the commit

    def table(self) -> str:
        """The files with their sizes in bytes, for people."""
        sizes = [[path, f"{file.stat().st_size:,}"] for path, file in self.files.items()]
        return columns([["file", "bytes"], *sizes, *([path, "deleted"] for path in self.deleted or ())])


def push(
    source: str | Path,
    repo_id: str,
    *,
    public: bool = False,
    name_private: bool = False,
    dry_run: bool = False,
    revision: str | None = None,
) -> Pushed:
    """Upload the files of a finished run's model, in one commit, to a model repository of the Hub.

    The card is generated again first; text between its markers, here or on the Hub, stays.
    repo_id: owner/model. A new repository is private; with `public` it is made public, after the upload.
    name_private: a public card may name models and data sets that are not public.
    dry_run: only list the files, and what would be deleted; nothing is changed on the Hub.
    revision: a branch, created if it is missing; by default main. Files of an older model that a loader would
    mistake for this one's, `READ`, are deleted by the same commit. Raises ModelError; the message gives the
    state on the Hub.

    >>> pushed = bertkit.push("runs/quickstart", "you/quickstart", dry_run=True)
    >>> [path for path in pushed.files if path.endswith(".safetensors")], pushed.url
    (['model.safetensors'], None)
    """
    if problems := target_problems(repo_id, revision):
        raise ModelError(problems)
    run = Run(Path(source).expanduser())
    files = payload(run, repo_id)
    problems = license_problems(run.recipe.hub, public, f"{run.folder}/recipe.yaml")
    if public and not name_private:
        problems += name_problems(run.recipe)
    if problems := [*problems, *([] if dry_run else login_problems())]:
        raise ModelError(problems)
    if dry_run:
        present = _present(repo_id, revision)
        return Pushed(repo_id, files, None if present is None else stale(files, present))
    api = HfApi()
    state = "Nothing was changed on the Hub."
    try:
        was_public = _repository(api, repo_id, public)
        state = "Check whether it has a new commit before you push again."
        if not was_public:
            state = f"A new repository {repo_id} is private. {state}"
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        head = api.model_info(repo_id, revision=revision).sha
        remote = api.list_repo_files(repo_id, revision=head)
        old = stale(files, remote)
        if CARD in remote:
            _merge_card(api, repo_id, head, run.model / CARD)
        commit = api.create_commit(
            repo_id,
            [
                *(CommitOperationAdd(path, str(file)) for path, file in files.items()),
                *map(CommitOperationDelete, old),
            ],
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
    if old:
        logger.warning("deleted in %s, as files of an older model: %s", repo_id, ", ".join(old))
    return Pushed(repo_id, files, old, commit.oid, commit.commit_url)


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


def name_problems(recipe: Recipe) -> list[Problem]:
    """Models and data sets that the card would name, and the Hub says are private or does not have."""
    models = [recipe.model.name, recipe.model.tokenizer, recipe.distillation and recipe.distillation.teacher]
    kinds = {**dict.fromkeys(map(hub_id, models), "model"), hub_id(recipe.data.source): "dataset"}
    names = [name for name, kind in kinds.items() if name and _is_private(name, kind)]
    if not names:
        return []
    what = f"the card would name private or missing repositories: {', '.join(names)}"
    return [
        Problem(
            "push",
            what,
            "Allow it (name_private) if everybody may read these names, or keep the model private.",
        )
    ]


def _is_private(name: str, kind: str) -> bool:
    """Whether the Hub says that a repository is private, or that there is none; no claim where it cannot be
    asked.
    """
    if login_problems():
        return False
    try:
        return HfApi().repo_info(name, repo_type=kind).private is True
    except FAILURES as error:
        return _absent(error)


def target_problems(repo_id: str, revision: str | None) -> list[Problem]:
    """Problems with the names of repository and revision."""
    problems = []
    if not REPO_ID.fullmatch(repo_id):
        fix = "Write owner/model, with letters, digits, `-`, `_` and `.`."
        problems.append(Problem("push", f"{repo_id!r} is not a valid repository id", fix))
    if revision is not None and COMMIT.fullmatch(revision):
        problems.append(
            Problem("push", f"{revision} is a commit", "Use a branch: a push makes its own commit.")
        )
    return problems


def _merge_card(api: HfApi, repo_id: str, commit: str | None, card: Path) -> None:
    """Copy the text between the markers of the Hub's card into ours.

    Raises ModelError where both have text and neither contains the other; or where the Hub's card has no
    markers.
    """
    where = f"{CARD} of {repo_id}"
    file = api.hf_hub_download(repo_id, CARD, revision=commit)
    remote = Path(file).read_text(encoding="utf-8")
    text = card.read_text(encoding="utf-8")
    theirs = yours(remote, where)
    ours = yours(text, str(card))
    if ours not in theirs and theirs not in ours:
        raise ModelError(
            "push",
            f"{card} and {where} have different texts between their markers",
            f"Write the final text into {card}, including all of {where}.",
        )
    write_text(card, with_yours(text, max(ours, theirs, key=len)))


def _repository(api: HfApi, repo_id: str, public: bool) -> bool:
    """Create the repository if needed; returns whether it is public. Raises ModelError if that was not
    requested.
    """
    try:
        repository = api.model_info(repo_id)
    except errors.RepositoryNotFoundError as error:
        if error.response.status_code == 401:
            raise
        api.create_repo(repo_id, private=True, exist_ok=True)
        return False
    if repository.private is not True and not public:
        raise ModelError(
            "push",
            f"{repo_id} is public, so the model would be too",
            "Push it as public, or use another repository.",
        )
    return repository.private is not True


def stale(files: Mapping[str, Path], remote: Iterable[str]) -> list[str]:
    """The files of a repository that loaders would read with those of this model."""
    return [path for path in remote if path not in files and fits(path, READ)]


def _present(repo_id: str, revision: str | None) -> list[str] | None:
    """The files of a repository, of main where there is no such branch yet; None where the Hub cannot be
    asked.
    """
    if login_problems():
        return None
    try:
        return HfApi().list_repo_files(repo_id, revision=revision)
    except errors.RevisionNotFoundError:
        return _present(repo_id, None)
    except FAILURES as error:
        return [] if _absent(error) else None


def _absent(error: BaseException) -> bool:
    """Whether the Hub says that there is no such repository, for this user."""
    return isinstance(error, errors.RepositoryNotFoundError) and error.response.status_code == 404
