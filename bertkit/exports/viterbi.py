"""The best path of a CRF as nodes of a graph, for batches of any size and length (Viterbi 1967)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bertkit.models.heads.posteriors import Chain

if TYPE_CHECKING:
    from onnx import ModelProto

# Forward: best score and log of the sum over all paths up to each word, in fp64. Then back from the last
# word.
GRAPH = """
<ir_version: 10, opset_import: ["" : 18]>
viterbi (float[batch, word, tag] emissions, int64[batch] words)
  => (int64[batch, word] tags, float[batch] score) {
  v_zero = Constant <value_int = 0> ()
  v_one = Constant <value_int = 1> ()
  v_axis1 = Constant <value_ints = [1]> ()
  v_axis2 = Constant <value_ints = [2]> ()
  v_shape = Shape (emissions)
  v_batch = Gather <axis = 0> (v_shape, v_zero)
  v_width = Gather <axis = 0> (v_shape, v_one)
  v_wide = Cast <to = 11> (emissions)
  v_tempered = Div (v_wide, v_temperature)
  v_peaks = ReduceMax (v_tempered, v_axis2)
  v_shifted = Sub (v_tempered, v_peaks)
  v_scores = Transpose <perm = [1, 0, 2]> (v_shifted)
  v_places = Range (v_zero, v_width, v_one)
  v_first = Equal (v_places, v_zero)
  v_place = Unsqueeze (v_places, v_axis1)
  v_inside = Less (v_place, words)
  v_next = Add (v_place, v_one)
  v_continues = Less (v_next, words)
  v_rows = Unsqueeze (v_batch, v_axis0)
  v_square = Concat <axis = 0> (v_rows, v_tags)
  v_nothing = Expand (v_null, v_square)
  v_best_last, v_sum_last, v_best = Scan <num_scan_inputs = 3, body = forth
    (double[b, k] best, double[b, k] sum, double[b, k] own, bool first, bool[b] inside)
    => (double[b, k] best_now, double[b, k] sum_now, double[b, k] best_here) {
      v_from_best = Unsqueeze (best, v_axis2)
      v_by_best = Add (v_from_best, v_transitions)
      v_best_into = ReduceMax <keepdims = 0> (v_by_best, v_axis1)
      v_from_sum = Unsqueeze (sum, v_axis2)
      v_by_sum = Add (v_from_sum, v_transitions)
      v_sum_into = ReduceLogSumExp <keepdims = 0> (v_by_sum, v_axis1)
      v_best_begun = Where (first, v_start, v_best_into)
      v_sum_begun = Where (first, v_start, v_sum_into)
      v_best_new = Add (v_best_begun, own)
      v_sum_new = Add (v_sum_begun, own)
      v_column = Unsqueeze (inside, v_axis1)
      best_now = Where (v_column, v_best_new, best)
      sum_now = Where (v_column, v_sum_new, sum)
      best_here = Identity (best_now)
    }> (v_nothing, v_nothing, v_scores, v_first, v_inside)
  v_best_end = Add (v_best_last, v_end)
  v_best_score = ReduceMax <keepdims = 0> (v_best_end, v_axis1)
  v_sum_end = Add (v_sum_last, v_end)
  v_all = ReduceLogSumExp <keepdims = 0> (v_sum_end, v_axis1)
  v_log = Sub (v_best_score, v_all)
  v_chance = Exp (v_log)
  v_some = Greater (words, v_zero)
  v_sure = CastLike (v_one, v_chance)
  v_certain = Where (v_some, v_chance, v_sure)
  score = Cast <to = 1> (v_certain)
  v_no_tags = Expand (v_zero, v_rows)
  v_minus = Neg (v_one)
  v_tag_last, v_path = Scan <num_scan_inputs = 3, scan_input_directions = [1, 1, 1],
    scan_output_directions = [1], body = back
    (int64[b] tag, double[b, k] here, bool[b] continues, bool[b] inside)
      => (int64[b] tag_now, int64[b] tag_here) {
      v_before = Gather <axis = 0> (v_turned, tag)
      v_more = Unsqueeze (continues, v_axis1)
      v_after = Where (v_more, v_before, v_end)
      v_through = Add (v_after, here)
      tag_now = ArgMax <axis = 1, keepdims = 0> (v_through)
      tag_here = Where (inside, tag_now, v_minus)
    }> (v_no_tags, v_best, v_continues, v_inside)
  tags = Transpose <perm = [1, 0]> (v_path)
}
"""


def viterbi(chain: Sequence[np.ndarray], temperature: float) -> ModelProto:
    """`emissions` `(batch, words, tags)` and their number of `words` `(batch,)` -> `tags` `(batch, words)`,
    -1 at padding, and `score` `(batch,)`: the posterior of the whole path, given the emissions.

    chain: transitions, start and end, fp64, as `crf.constrain` returns them, divided by the temperature like
    emissions. The path is that of `posteriors.decode`, even for ties.
    """
    from onnx import numpy_helper, parser

    model = parser.parse_model(GRAPH)
    parts = Chain(*(np.asarray(part, dtype=np.float64) for part in chain))
    constants = {
        "v_axis0": np.array([0]),
        "v_tags": np.array([len(parts.start)]),
        "v_null": np.zeros((1, 1)),
        "v_temperature": np.array(temperature, dtype=np.float64),
        "v_transitions": parts.transitions,
        "v_turned": np.ascontiguousarray(parts.transitions.T),
        "v_start": parts.start,
        "v_end": parts.end,
    }
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return model
