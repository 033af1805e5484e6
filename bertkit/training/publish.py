"""What a run gives away: its model, report and card, and a push to the Hub."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from functools import partial

from bertkit.errors import ModelError, Problem, RecipeError, UserError
from bertkit.recipe.recipe import AnyRecipe
from bertkit.run import Run, delete_checkpoints
from bertkit.text import shell_word

logger = logging.getLogger(__name__)


def check_hub(recipe: AnyRecipe) -> None:
    """Raises RecipeError where a push is certain to fail, before hours of training."""
    for part in recipe.parts.values():
        hub = part.hub
        if hub and hub.repo_id:
            from bertkit.hub.push import license_problems, login_problems, name_problems, target_problems

            problems = [*target_problems(hub.repo_id, hub.revision), *login_problems()]
            problems += license_problems(hub, not hub.private)
            if not hub.private:
                fix = "Set hub.private, or leave out hub.repo_id and push the run later, with name_private."
                problems += [problem._replace(fix=fix) for problem in name_problems(part)]
            if problems:
                raise RecipeError(problem._replace(where="hub") for problem in problems)


def write_reports_and_clean(run: Run, recipe: AnyRecipe) -> None:
    """Write each task's report and model card, unless there is a card, and delete the checkpoints that go.

    A run that was killed after its results, which mark it as finished, may lack them.
    """
    parts = [run.tasks.get(name, run) for name in recipe.parts]
    for part in parts:
        if not (part.model / "README.md").is_file():
            write_reports(part, recipe.explain)
    if freed := sum(delete_checkpoints(part, recipe.checkpoints) for part in {run, *parts}):
        logger.info("%s bytes of checkpoints were deleted", f"{freed:,}")


def push_run(run: Run, recipe: AnyRecipe) -> None:
    """Push the finished run if its recipe requests it. Raises ModelError; the run itself stays as it is."""
    for hub in (part.hub for part in recipe.parts.values()):
        if hub and hub.repo_id:
            from bertkit.hub.push import push

            try:
                push(run.folder, hub.repo_id, public=not hub.private, revision=hub.revision)
            except ModelError as error:
                fix = f"Push it later: bertkit push {shell_word(run.folder)} {hub.repo_id}"
                if hub.revision:
                    fix += f" --revision {shell_word(hub.revision)}"
                if not hub.private:
                    fix += " --public"
                complete = Problem(str(run.folder), "the run itself is complete", fix)
                raise ModelError([*error.problems, complete]) from None


def write_reports(run: Run, explains: bool) -> None:
    """Write explanations, report.html and the model card. A failure is only logged: the run is finished."""
    from bertkit.report.card import write_card
    from bertkit.report.html import write_report

    def explain() -> None:
        from bertkit.report.examples import write_explanations  # it needs captum, which may not be installed

        write_explanations(run.folder)

    parts: list[tuple[str, Callable[[], object], str]] = [
        ("explanation", explain, f"bertkit explain {shell_word(run.folder)}"),
        ("report", partial(write_report, run.folder), f"bertkit report {shell_word(run.folder)}"),
        ("model card", partial(write_card, run), f"bertkit push {shell_word(run.folder)} OWNER/MODEL"),
    ]
    for name, write, retry in parts if explains else parts[1:]:
        try:
            write()
        except Exception as error:  # no picture is worth a training
            what = f"{type(error).__name__}: {error}"
            bug = not isinstance(error, UserError | OSError)
            logger.warning(
                "no %s was written (%s); the run is complete. Try: %s", name, what, retry, exc_info=bug
            )


def publish(run: Run, seed: int) -> None:
    """The chosen seed's model becomes RUN/model, its LoRA adapter RUN/adapter."""
    for name in ("model", "adapter"):
        source = run.checkpoints / f"seed-{seed}" / name
        target = run.folder / name
        if source.is_dir():  # else it was moved before this run was interrupted and resumed
            shutil.rmtree(target, ignore_errors=True)
            source.replace(target)
