"""The model card: RUN/model/README.md, a pure function of a run's facts, except for what people wrote into
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import EvalResult, EvalResultEntry, ModelCardData, eval_result_entries_to_yaml

from bertkit.errors import ModelError
from bertkit.evaluation.intervals import COUNTS
from bertkit.files import write_text
from bertkit.recipe.yaml import written
from bertkit.report import report_sections
from bertkit.report.facts import Facts, damage_as_error, read_facts
from bertkit.report.html import library
from bertkit.report.rankings import is_ranked
from bertkit.report.score_tables import baselines_table, fitted_options, over_folds, over_seeds
from bertkit.report.verdict import MIN_ROWS
from bertkit.run import OUT_OF_FOLD, Run
from bertkit.sections import MEMORY
from bertkit.tasks import Usage, get_task
from bertkit.text import columns, printable, unique

BEGIN = "<!-- bertkit: yours -->"
END = "<!-- bertkit: end -->"
YOURS = re.compile(rf"^{BEGIN}[ \t]*\n(.*?)^{END}[ \t]*$", re.MULTILINE | re.DOTALL)
FRONT = re.compile(r"\A\s*---\n.*?^---$", re.MULTILINE | re.DOTALL)
LEADERBOARD = ".eval_results/bertkit.yaml"  # beside the card
PLACEHOLDER = "PATH_OR_HUB_ID"  # stands for the model in `Usage`
FIRST = "library_name pipeline_tag license language base_model base_model_relation datasets tags".split()


def write_card(run: Run, repo_id: str | None = None) -> Path:
    """Write RUN/model/README.md again; what people wrote between its markers stays. Returns its path.

    With `hub.benchmark` also LEADERBOARD, beside it.
    repo_id: what the card calls the model; by default the recipe's `hub.repo_id`.
    Raises ModelError if a fact is missing, or if the present card has text but no markers.
    """
    path = run.model / "README.md"
    with damage_as_error(run.folder):
        facts = read_facts(run.folder)
        text = card(facts, repo_id)
        if facts.schema.corpus:
            from bertkit.models.encoder import load_tokenizer
            from bertkit.models.untrusted import vet

            mask = load_tokenizer(vet(run.model)).mask_token
            text = text.replace("one [MASK] in it", f"one {mask} in it")
        scored = leaderboard(facts)
        text.encode()  # fails on lone surrogates
    if path.is_file():
        text = with_yours(text, yours(path.read_text(encoding="utf-8"), str(path)))
    write_text(path, text)
    if scored:
        write_text(run.model / LEADERBOARD, scored)
    else:
        (run.model / LEADERBOARD).unlink(missing_ok=True)
    return path


def yours(text: str, where: str) -> str:
    """What people wrote between the markers of a card.

    Raises ModelError if a card has text but not both markers: people may have written all of it.
    """
    lines = text.replace("\r\n", "\n")
    if match := YOURS.search(lines):
        return match[1].strip("\n")
    if not FRONT.sub("", lines).strip():
        return ""
    raise ModelError(
        where,
        f"is a card without the lines {BEGIN} and {END}, and would be overwritten",
        "Put these lines around the text to keep, or remove the file.",
    )


def with_yours(text: str, written: str) -> str:
    """The card with this text between its markers."""
    between = f"{BEGIN}\n{written}\n{END}" if written else f"{BEGIN}\n{END}"
    return YOURS.sub(lambda _: between, text, count=1)


def card(facts: Facts, repo_id: str | None = None) -> str:
    """The card's text, without what people wrote. Raises ModelError if a fact is missing."""
    hub = facts.recipe.hub
    results = facts.results
    name = repo_id or (hub.repo_id if hub else None)
    model = name or PLACEHOLDER
    usage = usage_of(facts)
    # The page is Markdown: these filters of the template escape what comes from the data, not Jinja's
    # autoescape.
    markdown = library().overlay(autoescape=False, lstrip_blocks=False, keep_trailing_newline=True)
    markdown.filters = markdown.filters | {"inline": _inline, "fenced": _fenced, "columns": columns}
    text = markdown.get_template("card.md").render(
        facts=facts,
        sections=report_sections,
        metadata=_metadata(facts, name),
        title=_title(facts),
        begin=BEGIN,
        end=END,
        scores="\n\n".join(baselines_table(results, split) for split in results["splits"]),
        units="queries" if is_ranked(facts) else "rows",
        over_seeds=over_seeds(results),
        over_folds=over_folds(results),
        warnings=[finding for finding in report_sections.of_scores(facts) if finding.level != "note"],
        hub_source=hub_id(facts.recipe.data.source),
        limits=list(_limits(facts)),
        plain=usage.plain.replace(PLACEHOLDER, model),
        ours=f'import bertkit\n\nbertkit.load("{model}")({usage.arguments})',
        adds=usage.adds,
    )
    return printable(text)


def _metadata(facts: Facts, repo_id: str | None) -> str:
    """The Hub's metadata, as YAML: https://huggingface.co/docs/hub/model-cards."""
    hub = facts.recipe.hub
    usage = usage_of(facts)
    tag = usage.tag
    base = hub_id(facts.recipe.model.name)
    data = hub_id(facts.recipe.data.source)
    results = list(_results(facts, tag or facts.task))
    return ModelCardData(
        base_model=base,
        base_model_relation="finetune" if base else None,  # adapters are merged before they are saved
        datasets=[data] if data else None,
        eval_results=results or None,
        language=hub.language if hub else None,
        library_name="sentence-transformers" if "sentence_transformers" in usage.plain else "transformers",
        license=hub.license if hub else None,
        metrics=unique(result.metric_type for result in results) or None,
        model_name=repo_id.partition("/")[2] if repo_id else _title(facts),
        pipeline_tag=tag,
        tags=["bertkit"] if tag == facts.task else ["bertkit", facts.task],
    ).to_yaml(original_order=FIRST)


def leaderboard(facts: Facts) -> str:
    """The headline on test, as https://huggingface.co/docs/hub/eval-results has it; empty without
    `hub.benchmark`.
    """
    hub = facts.recipe.hub
    data = facts.recipe.data
    test = facts.results["splits"].get("test")
    if not (hub and hub.benchmark):
        return ""
    if not test:
        raise ModelError(
            f"{facts.name}/recipe.yaml",
            "hub.benchmark needs scores on test",
            "Map the benchmark's split, data.splits: {test: …}, and train again; or remove hub.benchmark.",
        )
    entry = EvalResultEntry(
        dataset_id=str(data.source),
        dataset_revision=data.revision,
        task_id=hub.benchmark,
        value=test["metrics"][facts.headline],
        notes=f"{facts.headline}, {test['rows']} rows",
    )
    return written(eval_result_entries_to_yaml([entry]))


def _results(facts: Facts, tag: str) -> Iterator[EvalResult]:
    """One for each metric of each held-out split, with all digits; without metrics of single labels."""
    spec = facts.recipe.data
    local = str(spec.source) if str(spec.source).startswith("sample:") else "local files"
    for split, scores in facts.results["splits"].items():
        if split == OUT_OF_FOLD:  # no split of the data, and not answered by this model
            continue
        for name, value in scores["metrics"].items():
            if "/" not in name and value is not None and not name.startswith(COUNTS):
                yield EvalResult(
                    task_type=tag,
                    dataset_type=hub_id(spec.source) or local,
                    dataset_name=report_sections.published(spec.source),
                    dataset_config=spec.subset,
                    dataset_split=split,
                    dataset_revision=spec.revision,
                    metric_type=name,
                    metric_value=value,
                    metric_name=f"{name} on {split}",
                )


def hub_id(name: object) -> str | None:
    """The id of a model or data set if it comes from the Hub: in a run, local ones are absolute paths."""
    return (
        name if isinstance(name, str) and not name.startswith(("/", "sample:")) and name != MEMORY else None
    )


def _title(facts: Facts) -> str:
    model = facts.recipe.model.title
    data = facts.recipe.data.source
    return f"{report_sections.published(model)} on {report_sections.published(data)}"


def usage_of(facts: Facts) -> Usage:
    """How the card shows the model in use."""
    task = get_task(facts.task)
    return task.usage_of(task.Options.model_construct(**facts.options))


def _limits(facts: Facts) -> Iterator[str]:
    """What a reader should not expect of the model."""
    yield _reach(facts)
    counts = report_sections.support(facts).items()
    if named := [f"{_inline(name)} ({count})" for name, count in counts if count < MIN_ROWS]:
        few = f"fewer than {MIN_ROWS} examples on {facts.split}"
        yield f"Labels with {few}, whose scores say little: {', '.join(named)}."
    yield _calibration(facts)
    yield "Scores hold only for data like the above."


def _reach(facts: Facts) -> str:
    """How much of a text the model reads. Raises ModelError if the predictions that tell it are gone."""
    most = f"{facts.recipe.model.max_length} tokens"
    unset = "window" if "stride" in facts.options else "truncate"
    overflow = "block" if facts.schema.corpus else facts.options.get("overflow", unset)
    if overflow == "truncate" and not facts.rows:
        raise ModelError(
            f"{facts.name}/predictions/{facts.split}.jsonl",
            "is missing: it states how many texts were truncated",
            "Restore the file, or train the run again.",
        )
    longer = f": {facts.truncated:,} of {len(facts.rows):,} rows of {facts.split} were longer"
    if facts.schema.together:  # whose answers do not tell it
        longer = ""
    kept = "nothing is truncated"
    if facts.truncated:  # of a pair whose texts are both long
        kept = f"{facts.truncated:,} of {len(facts.rows):,} rows of {facts.split} were truncated"
    return {
        "block": f"Documents are read in blocks of up to {most}.",
        "window": f"Texts are read in windows of up to {most}; {kept}.",
        "error": f"Texts of more than {most} are rejected.",
        "truncate": f"Texts are truncated to {most}{longer}.",
    }[overflow]


def _calibration(facts: Facts) -> str:
    if "temperature" not in facts.options or facts.options.get("kind") == "regression":
        return "Its scores are not calibrated as probabilities."
    if facts.options["temperature"] is None:
        return "Its probabilities are not calibrated: there were no validation rows to fit a temperature on."
    values = ", ".join(f"{_inline(name)} {value}" for name, value in fitted_options(facts.options).items())
    error = None if facts.split == OUT_OF_FOLD else facts.scores["metrics"].get("ece")  # before calibration
    measured = f"; expected calibration error on {facts.split}: {error:.4f}" if error is not None else ""
    how = report_sections.fitted_on(facts) or "set by the recipe"
    return f"Its probabilities are calibrated ({how}): {values}{measured}."


def _inline(text: str) -> str:
    """The text in one line, escaped for Markdown and HTML."""
    return re.sub(r"([\\`*\[\]<>#|~])", r"\\\1", " ".join(text.split())).replace("&", "&amp;")


def _fenced(text: str, language: str) -> str:
    """A code block that no line of the text can end; empty without text."""
    fence = max(["```", *(f"{run}`" for run in re.findall("`+", text))], key=len)
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}"
