"""Questions whose answers are likely wrong."""

from __future__ import annotations

import numpy as np

from bertkit.audits.correction_lists import corrected, to_check
from bertkit.audits.parts import Evidence, Row, Section
from bertkit.evaluation.intervals import Floats
from bertkit.evaluation.squad_metrics import question_scores

NO_ANSWER = "(no answer)"
NOTE = (
    "A question is listed where the model of the fold that was not trained on it gives an answer that shares no word "
    "with those in the data, at least as probable as the answers that share one are on average; or finds no answer "
    "where there is one, at least as probable as that is on average where there is none."
)


def questions(evidence: Evidence) -> Section:
    """Questions whose answer shares no word with those in the data, the most probable first; one may be no answer."""
    rows, golds = evidence.rows, [row["answers"]["text"] for row in evidence.rows]
    answers = [row["answer"] for row in rows]
    overlap = np.array([question_scores(own["answer"], gold)[1] for own, gold in zip(answers, golds, strict=True)])
    score, null = np.array([[own["score"], own["null_score"]] for own in answers]).T
    silent, unanswerable = np.array([[not own["answer"], not gold] for own, gold in zip(answers, golds, strict=True)]).T
    limit = np.where(silent, _mean(null[unanswerable]), _mean(score[(overlap > 0) & ~silent]))
    wrong = np.flatnonzero((overlap == 0) & (score >= limit))

    def correction(index: int) -> Row:
        own, given = answers[index], " | ".join(dict.fromkeys(golds[index])) or NO_ANSWER
        new = (
            {"text": [own["answer"]], "answer_start": [own["start"]]}
            if own["answer"]
            else {"text": [], "answer_start": []}
        )
        return corrected(rows[index], "answers", new, given, own["answer"] or NO_ANSWER, probability=score[index])

    ranked = wrong[np.argsort(-score[wrong], kind="stable")]
    return to_check([*map(correction, ranked)], len(rows), "answer", [NOTE])


def _mean(values: Floats) -> float:
    """Infinite where there is none."""
    return float(values.mean()) if len(values) else np.inf
