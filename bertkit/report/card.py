"""The model card: RUN/model/README.md, a pure function of a run's facts, but for what a person wrote into it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.errors import ModelError, Problem
from bertkit.files import write_text
from bertkit.report import sections
from bertkit.report.comparison import flat
from bertkit.report.facts import Facts, read_facts, understood
from bertkit.report.table import COUNTS, against_baselines, against_teacher, beaten
from bertkit.report.usage import TAGS, USAGE
from bertkit.tasks import get_task
from bertkit.text import columns

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

    from bertkit.run import Run

BEGIN, END = "<!-- bertkit: yours -->", "<!-- bertkit: end -->"
YOURS = re.compile(rf"^{BEGIN}[ \t]*\n(.*?)^{END}[ \t]*$", re.MULTILINE | re.DOTALL)
FRONT = re.compile(r"\A\s*---\n.*?^---$", re.MULTILINE | re.DOTALL)
SOMEWHERE = "PATH_OR_HUB_ID"  # stands for the model in the tasks' usages
FIRST = ("library_name", "pipeline_tag", "license", "language", "base_model", "base_model_relation", "datasets", "tags")


def write_card(run: Run, repo_id: str | None = None) -> Path:
    """Write RUN/model/README.md anew; what a person wrote between its markers stays. Returns its path.

    repo_id: what the card calls the model; by default the recipe's `hub.repo_id`.
    Raises ModelError where a fact is missing, or where the present card has text but no markers.
    """
    path = run.model / "README.md"
    with understood(run.folder):
        text = card(read_facts(run.folder), repo_id)
        text.encode()  # a lone surrogate is no text
    if path.is_file():
        text = with_yours(text, yours(path.read_text(encoding="utf-8"), str(path)))
    write_text(path, text)
    return path


def yours(text: str, where: str) -> str:
    """What a person wrote between the markers of a card.

    Raises ModelError where a card has text, and not both markers: all of it may be somebody's.
    """
    lines = text.replace("\r\n", "\n")
    if found := YOURS.search(lines):
        return found[1].strip("\n")
    if not FRONT.sub("", lines).strip():
        return ""
    what = f"is a card without the lines {BEGIN} and {END}, and would be written over"
    raise ModelError(Problem(where, what, "Put these lines around what is to stay; or remove the file."))


def with_yours(text: str, kept: str) -> str:
    """The card with this text between its markers."""
    between = f"{BEGIN}\n{kept}\n{END}" if kept else f"{BEGIN}\n{END}"
    return YOURS.sub(lambda _: between, text, count=1)


def card(facts: Facts, repo_id: str | None = None) -> str:
    """The card's text, without anybody's additions. Raises ModelError where a fact is missing."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    name = repo_id or (facts.recipe.hub.repo_id if facts.recipe.hub else None)
    plain, ours, adds = _usage(facts, name or SOMEWHERE)
    labels = [["label", "rows", "precision", "recall", "f1", "95 % interval"]]
    for each in sections.per_label(facts):
        count = "–" if each.support is None else f"{each.support:,}"
        labels.append([each.name, count, each.precision, each.recall, each.f1, each.interval])
    found = [f"{finding['level']}: {finding['what']}" for finding in facts.data["findings"]]
    results = facts.results
    # The page is Markdown: what comes from the data is fenced or escaped here, by kind, not by the template.
    library = Environment(
        loader=PackageLoader("bertkit.report"), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    return library.get_template("card.md").render(
        metadata=_metadata(facts, name),
        title=_inline(_title(facts)),
        summary=_inline(sections.summary(facts)),
        stated=_stated(facts),
        begin=BEGIN,
        end=END,
        scores=_fenced("\n\n".join(against_baselines(results, split) for split in results["splits"]), "text"),
        units=_units(facts),
        seeds=_seeds(facts),
        warnings=[_inline(line.removeprefix("warning: ")) for line in beaten(results)],
        teacher=_fenced(against_teacher(results["distillation"]), "text") if "distillation" in results else "",
        split=facts.split,
        labels=_fenced(columns(labels), "text") if len(labels) > 1 else "",
        plain=_fenced(plain, "python"),
        adds=adds,
        ours=_fenced(ours, "python"),
        source=_source(facts),
        splits=_fenced(columns(_splits(facts)), "text"),
        findings=_fenced("\n".join(found), "text") if found else "",
        limits=list(_limits(facts)),
        verified=results["verified"],
        recipe=_fenced(facts.recipe_text, "yaml"),
        environment=_fenced(columns([["what", "value"], *map(list, flat(facts.environment).items())]), "text"),
    )


def _metadata(facts: Facts, repo_id: str | None) -> str:
    """What the Hub reads, as YAML: https://huggingface.co/docs/hub/model-cards."""
    from huggingface_hub import ModelCardData

    kind, hub = get_task(facts.task), facts.recipe.hub
    tag = TAGS.get(kind.name, kind.name)
    base, data = _of_the_hub(facts.recipe.model.name), _of_the_hub(facts.recipe.data.source)
    results = list(_results(facts, tag))
    return ModelCardData(
        base_model=base,
        base_model_relation="finetune" if base else None,  # adapters are merged before they are saved
        datasets=[data] if data else None,
        eval_results=results,
        language=hub.language if hub else None,
        library_name="sentence-transformers" if "sentence_transformers" in USAGE[kind.name].plain else "transformers",
        license=hub.license if hub else None,
        metrics=list(dict.fromkeys(each.metric_type for each in results)),
        model_name=repo_id.partition("/")[2] if repo_id else _title(facts),
        pipeline_tag=tag,
        tags=["bertkit"] if tag == kind.name else ["bertkit", kind.name],
    ).to_yaml(original_order=list(FIRST))


def _results(facts: Facts, tag: str) -> Iterator[EvalResult]:
    """One for each metric of each split, without those of single labels, with all their digits."""
    from huggingface_hub import EvalResult

    spec = facts.recipe.data
    sample = spec.source if isinstance(spec.source, str) and spec.source.startswith("sample:") else None
    for split, scores in facts.results["splits"].items():
        for name, value in scores["metrics"].items():
            if "/" not in name and value is not None and not name.startswith(COUNTS):
                yield EvalResult(
                    task_type=tag,
                    dataset_type=_of_the_hub(spec.source) or sample or "local files",
                    dataset_name=sections.source(facts),
                    dataset_config=spec.subset,
                    dataset_split=split,
                    dataset_revision=spec.revision,
                    metric_type=name,
                    metric_value=value,
                    metric_name=f"{name} on {split}",
                )


def _of_the_hub(name: object) -> str | None:
    """The name of a model or data set, if it is the Hub's: in a run, local ones are absolute paths."""
    return name if isinstance(name, str) and not name.startswith(("/", "sample:")) else None


def _title(facts: Facts) -> str:
    return f"{sections.encoder(facts)} on {sections.source(facts)}"


def _usage(facts: Facts, name: str) -> tuple[str, str, str]:
    """Code with plain libraries, code with bertkit, and what bertkit adds."""
    plain, arguments, adds = USAGE[facts.task]
    if facts.options.get("pair"):
        plain = plain.replace('"your text"', '{"text": "your text", "text_pair": "another"}')
        arguments = '{"text_a": "your text", "text_b": "another"}'
    ours = f'import bertkit\n\nbertkit.load("{SOMEWHERE}")({arguments})'
    return plain.replace(SOMEWHERE, name), ours.replace(SOMEWHERE, name), adds


def _stated(facts: Facts) -> str:
    """Licence and language, or that nobody stated them."""
    hub = facts.recipe.hub
    spoken = hub and ([hub.language] if isinstance(hub.language, str) else hub.language)
    said = f"Licence: {hub.license}." if hub and hub.license else "No licence was stated for this model."
    return f"{said} Language: {', '.join(spoken)}." if spoken else f"{said} No language was stated for its texts."


def _units(facts: Facts) -> str:
    searched = any({"queries", "worst_queries"} & each.keys() for each in facts.results["splits"].values())
    return "queries" if searched else "rows"


def _seeds(facts: Facts) -> str:
    name, seeds = facts.headline, facts.results["seeds"]
    if len(seeds) < 2:
        return ""
    over = [
        f"{split} {each[name]['mean']:.4f} ± {each[name]['sd']:.4f}"
        for split, each in facts.results["over_seeds"].items()
        if name in each
    ]
    return f" Over {len(seeds)} seeds, {name}: {', '.join(over)} (mean ± sd); this model is the best one on validation."


def _source(facts: Facts) -> str:
    """The data set, with its subset and its revision."""
    name, spec, owned = sections.source(facts), facts.recipe.data, _of_the_hub(facts.recipe.data.source)
    parts = [f"[{owned}](https://huggingface.co/datasets/{owned})" if owned else _inline(name)]
    parts += [f"subset {_inline(spec.subset)}"] if spec.subset else []
    parts += [f"revision {_inline(spec.revision)}"] if spec.revision else []
    return ", ".join(parts)


def _splits(facts: Facts) -> list[Sequence[str]]:
    prints, rows = facts.data["fingerprints"], facts.data["rows"]
    return [["split", "rows", "sha256"], *([name, f"{rows[name]:,}", prints[name]] for name in rows)]


def _limits(facts: Facts) -> Iterator[str]:
    """What a reader should not expect of the model."""
    yield _reach(facts)
    few = [each for each in sections.per_label(facts) if each.support is not None and each.support < sections.FEW]
    if few:
        named = ", ".join(f"{_inline(each.name)} ({each.support})" for each in few)
        yield f"Labels with fewer than {sections.FEW} examples on {facts.split}, whose scores say little: {named}."
    yield from _calibration(facts)
    yield "Scores hold for data like those above, and for no others."


def _reach(facts: Facts) -> str:
    """How much of a text the model reads. Raises ModelError where the answers that tell it are gone."""
    most = f"{facts.recipe.model.max_length} word pieces"
    overflow = facts.options.get("overflow", "window")
    if facts.task == "pretraining":
        return f"Documents are read in blocks of up to {most}."
    if overflow == "window":
        return f"Texts are read in windows of up to {most}; nothing is cut."
    if overflow == "error":
        return f"Texts of more than {most} are refused."
    if not facts.rows:
        what, fix = "is missing: it states how many texts were cut", "Train it again, or bring the file back."
        raise ModelError(Problem(f"{facts.name}/predictions/{facts.split}.jsonl", what, fix))
    cut = sum(bool(row["answer"].get("truncated")) for row in facts.rows)
    return f"Texts are read up to {most}; of {len(facts.rows):,} rows of {facts.split}, {cut:,} were cut."


def _calibration(facts: Facts) -> Iterator[str]:
    if "temperature" not in facts.options or facts.options.get("kind") == "regression":
        yield "Its scores are not calibrated as probabilities."
    elif facts.options["temperature"] is None:
        yield "Its probabilities are not calibrated: there were no validation rows to fit a temperature on."
    else:
        settled = ", ".join(f"{_inline(name)} {value}" for name, value in sections.named_options(facts).items())
        error = facts.scores["metrics"].get("ece")
        said = f"; expected calibration error on {facts.split}: {error:.4f}" if error is not None else ""
        given = facts.recipe.task.model_dump()["temperature"] is not None
        yield f"Its probabilities are calibrated ({'given' if given else 'fitted on validation'}): {settled}{said}."


def _inline(text: str) -> str:
    """Text in one line, none of which Markdown or HTML takes for its own."""
    return re.sub(r"([\\`*\[\]<>#|~])", r"\\\1", " ".join(text.split())).replace("&", "&amp;")


def _fenced(text: str, language: str) -> str:
    """A code block that no line of the text can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}"
