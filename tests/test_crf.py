"""The CRF against all paths written out, pytorch-crf, itself done another way, and its marginals in NumPy."""

from functools import partial
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torchcrf
from cases import BY_ID, encoder
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose
from small import raises
from torch import Tensor
from torch.testing import assert_close

from bertkit.models.heads import crf, forward_backward, posteriors
from bertkit.models.heads.crf import CRF, Chain, chain_loss

BIO = "O B-PER I-PER B-LOC I-LOC".split()
BIOES = "O B-PER I-PER E-PER S-PER B-LOC I-LOC E-LOC S-LOC".split()
# by the schemes' definitions, for one type: what may follow a tag, ^ and $ being the sentence's ends
ALLOWED = {
    "BIO": {"^": "OB$", "O": "OB$", "B": "OBI$", "I": "OBI$"},
    "BIOES": {"^": "OBS$", "O": "OBS$", "B": "IE", "I": "IE", "E": "OBS$", "S": "OBS$"},
}


class Brute(NamedTuple):
    """All paths of one sentence."""

    paths: np.ndarray  # (paths, words)
    scores: np.ndarray  # (paths,)

    @property
    def log_partition(self):
        return float(np.logaddexp.reduce(self.scores))

    @property
    def chances(self):
        return np.exp(self.scores - self.log_partition)


class Case(NamedTuple):
    """A batch with each of its sentences' paths."""

    emissions: Tensor
    tags: Tensor
    mask: Tensor
    chain: Chain
    brute: list[Brute]


def enumerate_paths(emissions, chain):
    words, count = emissions.shape
    scores, transitions, start, end = (x.double().numpy() for x in (emissions, *chain))
    paths = np.array(list(product(range(count), repeat=words)))
    total = start[paths[:, 0]] + end[paths[:, -1]] + scores[np.arange(words), paths].sum(1)
    return Brute(paths, total + transitions[paths[:, :-1], paths[:, 1:]].sum(1))


def random_chain(rng, count, scale, *, holes=False):
    """With holes, a third of it is forbidden, but not what leads from and to tag 0."""
    made = []
    for shape in ((count, count), (count,), (count,)):
        numbers = rng.normal(size=shape) * scale
        if holes:
            never = rng.random(shape) < 0.33
            never[..., 0] = False
            never[0] = False
            numbers[never] = crf.FORBIDDEN
        made.append(torch.from_numpy(numbers))
    return Chain(*made)


def random_batch(rng, batch, words, count, scale):
    """Ragged: emissions, tags, mask."""
    lengths = rng.integers(1, words + 1, batch)
    lengths[0] = words
    mask = torch.from_numpy(np.arange(words) < lengths[:, None])
    emissions = torch.from_numpy(rng.normal(size=(batch, words, count)) * scale)
    return emissions, torch.from_numpy(rng.integers(0, count, (batch, words))), mask


@pytest.fixture(scope="module")
def cases():
    """1,000 sentences of up to 5 words and 4 tags, in 100 batches with a chain each; scores from tame to
    wild.
    """
    rng = default_rng(0)
    made = []
    for index in range(100):
        words = 1 + index % 5
        count = 1 + index // 5 % 4
        scale = (0.1, 1.0, 5.0, 60.0)[index // 20 % 4]
        emissions, tags, mask = random_batch(rng, 10, words, count, scale)
        chain = random_chain(rng, count, scale, holes=index % 3 == 0)
        brute = [enumerate_paths(e[:n], chain) for e, n in zip(emissions, mask.sum(1), strict=True)]
        made.append(Case(emissions, tags, mask, chain, brute))
    return made


@pytest.fixture(params=["loop", "scan", "logs"])
def way(request, monkeypatch):
    """How sums are done: of probabilities on the CPU, or as on CUDA, logarithms where scores ask for it; or
    always.
    """
    if request.param == "scan":
        use_scan(monkeypatch)
    if request.param == "logs":
        monkeypatch.setattr(crf, "posterior", forward_backward._log_posterior)
    return str(request.param)


def use_scan(patch):
    patch.setattr(forward_backward, "_loop", lambda *args: forward_backward._scan(*args[:3]))


@torch.no_grad()
def sums(emissions, mask, chain):
    """As the loss finds them."""
    return crf.posterior(emissions, mask, chain)


def best_paths(emissions, mask, chain):
    """As answers are decoded, in the emissions' precision."""
    return torch.from_numpy(posteriors.decode(*in_numpy(emissions, mask, chain)))


def in_numpy(emissions, mask, chain):
    """Emissions, lengths and chain, as answers are decoded from them."""
    parts = [part.detach().to(emissions).numpy() for part in chain]
    return emissions.detach().numpy(), mask.sum(1).numpy(), parts


def marginals(emissions, mask, chain):
    """Those of answers; 0 at padding."""
    found = posteriors.posterior(*in_numpy(emissions, mask, chain)).marginals
    return torch.from_numpy(found).where(mask[..., None], 0.0)


def needs_logarithms(emissions, mask, chain):
    """Whether sums of probabilities could underflow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forward_backward, "_log_posterior", lambda *args: None)
        return forward_backward.posterior(emissions, mask, chain) is None


def test_the_cases_need_probabilities_and_logarithms_and_the_usual_scores_no_logarithms(cases):
    logs = [needs_logarithms(case.emissions, case.mask, case.chain) for case in cases]
    assert 10 <= sum(logs) <= 60
    emissions, _, mask = random_batch(default_rng(0), 8, 100, len(BIOES), 5.0)
    chain = crf.constrain(random_chain(default_rng(0), len(BIOES), 2.0), BIOES)
    assert not needs_logarithms(emissions, mask, chain)


@pytest.mark.usefixtures("way")
def test_partition_and_marginals_equal_all_paths(cases):
    for case in cases:
        expected = torch.tensor([brute.log_partition for brute in case.brute], dtype=torch.float64)
        total, *_ = posterior = sums(case.emissions, case.mask, case.chain)
        assert_close(total, expected, rtol=1e-12, atol=1e-10)
        found = posterior.marginals.numpy()
        for row, brute in enumerate(case.brute):
            words = brute.paths.shape[1]
            expected = [np.bincount(column, brute.chances, found.shape[2]) for column in brute.paths.T]
            assert_allclose(found[row, :words], expected, rtol=1e-6, atol=1e-12)
            assert (found[row, words:] == 0).all()


@pytest.mark.usefixtures("way")
def test_losses_and_gradients_equal_all_paths(cases):
    """Gradients of a weighted sum of losses, by emissions, transitions, start and end."""
    for case in cases:
        weights = torch.linspace(0.5, 1.5, len(case.brute), dtype=torch.float64)
        inputs = [x.clone().requires_grad_() for x in (case.emissions, *case.chain)]
        loss = crf.nll(inputs[0], case.tags, case.mask, Chain(*inputs[1:]))
        (loss * weights).sum().backward()
        expected = [np.zeros(x.shape) for x in inputs]
        for row, (brute, weight) in enumerate(zip(case.brute, weights.tolist(), strict=True)):
            words = brute.paths.shape[1]
            gold = case.tags[row, :words].numpy()[None]
            own = brute.scores[(brute.paths == gold).all(1)][0]
            assert float(loss[row].detach()) == pytest.approx(brute.log_partition - own, rel=1e-9, abs=1e-9)
            for paths, chances in ((brute.paths, weight * brute.chances), (gold, np.array([-weight]))):
                for word in range(words):
                    np.add.at(expected[0], (row, word, paths[:, word]), chances)
                for word in range(1, words):
                    np.add.at(expected[1], (paths[:, word - 1], paths[:, word]), chances)
                np.add.at(expected[2], paths[:, 0], chances)
                np.add.at(expected[3], paths[:, -1], chances)
        for x, gradient in zip(inputs, expected, strict=True):
            assert_allclose(x.grad.numpy(), gradient, rtol=1e-6, atol=1e-9)


def test_viterbi_finds_the_best_of_all_paths(cases):
    for case in cases:
        found = best_paths(case.emissions, case.mask, case.chain).numpy()
        for row, brute in enumerate(case.brute):
            words = brute.paths.shape[1]
            assert found[row, :words].tolist() == brute.paths[brute.scores.argmax()].tolist()
            assert (found[row, words:] == -1).all()


def first_best_path(emissions, chain):
    """Of one sentence, tag by tag (Viterbi 1967); of equals the first, from the last word on."""
    transitions, start, end = (part.to(torch.from_numpy(emissions).dtype).numpy() for part in chain)
    scores = emissions - emissions.max(1, keepdims=True)
    best = [start + scores[0]]
    for own in scores[1:]:
        best.append(np.array([(best[-1] + into).max() for into in transitions.T]) + own)
    path = [int((best[-1] + end).argmax())]
    for before in best[-2::-1]:
        path.append(int((before + transitions[:, path[-1]]).argmax()))
    return path[::-1]


@pytest.mark.parametrize("count", [1, 2, 3, 9, 37])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("ties", [False, True])
def test_of_equal_paths_the_first_is_taken(count, kind, ties):
    """To the last digit the scores of one sentence by itself, whatever is in the batch."""
    rng = default_rng([count, ties])
    emissions, _, mask = random_batch(rng, 40, 30, count, 1.0)
    chain = random_chain(rng, count, 1.0, holes=True)
    if ties:
        emissions = emissions.round()
        chain = Chain(*(part.round() for part in chain))
    emissions = emissions.to(kind)
    chain = Chain(*(part.to(kind) for part in chain))
    found = best_paths(emissions, mask, chain)
    for own, path, words in zip(emissions.numpy(), found.tolist(), mask.sum(1).tolist(), strict=True):
        assert path == first_best_path(own[:words], chain) + [-1] * (len(path) - words)


def test_span_posteriors_equal_all_paths(cases):
    """Of all spans of each sentence, with its best tags and with random ones."""
    rng = default_rng(1)
    for case in cases:
        count = case.emissions.shape[2]
        continues = rng.random((count, count)) < 0.4
        for tags in (best_paths(case.emissions, case.mask, case.chain), case.tags):
            spans = []
            expected = []
            for row, brute in enumerate(case.brute):
                words = brute.paths.shape[1]
                own = tags[row].numpy()
                for first, last in ((i, j) for i in range(words) for j in range(i, words)):
                    fits = (brute.paths[:, first : last + 1] == own[first : last + 1]).all(1)
                    if last + 1 < words:
                        fits &= ~continues[own[last], brute.paths[:, last + 1]]
                    spans.append((row, first, last))
                    expected.append(brute.chances[fits].sum())
            scores, sizes, parts = in_numpy(case.emissions, case.mask, case.chain)
            found = posteriors.posterior(scores, sizes, parts)
            chances = posteriors.span_posteriors(
                found, sizes, parts, tags.numpy(), np.array(spans), continues
            )
            assert_allclose(chances, expected, rtol=1e-6, atol=1e-12)


def test_equals_pytorch_crf():
    torch.manual_seed(9)
    theirs = torchcrf.CRF(9, batch_first=True).double()
    ours = CRF(9).double()
    assert not any(part.any() for part in ours()), "at first all is alike"
    ours.load_state_dict(theirs.state_dict())
    emissions, tags, mask = random_batch(default_rng(9), 8, 40, 9, 2.0)
    expected = -theirs(emissions, tags, mask=mask, reduction="none")
    assert_close(crf.nll(emissions, tags, mask, ours()), expected, rtol=1e-10, atol=1e-10)
    found = best_paths(emissions, mask, ours())
    assert [row[row >= 0].tolist() for row in found] == theirs.decode(emissions, mask=mask)


# --- what the schemes forbid


@pytest.mark.parametrize("tags", [BIO, BIOES])
def test_forbidden_follows_the_scheme(tags):
    rules = ALLOWED["BIO" if tags is BIO else "BIOES"]
    transitions, start, end = posteriors.forbidden(tags)
    for i, one in enumerate(tags):
        for j, other in enumerate(tags):
            right = other[0] in rules[one[0]] and (other[0] in "OBS" or one[2:] == other[2:])
            assert bool(transitions[i, j]) is not right, (one, other)
        assert bool(start[i]) is (one[0] not in rules["^"])
        assert bool(end[i]) is ("$" not in rules[one[0]])


def test_forbidden_takes_no_other_tags():
    raises(
        ValueError,
        "not tags of BIO or BIOES: U-PER, B-, PER",
        posteriors.forbidden,
        "O U-PER B- PER B-LOC".split(),
    )


@given(st.integers(0, 2**32), st.sampled_from([BIO, BIOES]), st.sampled_from([0.0, 1.0, 100.0, 1e4]))
def test_the_forbidden_is_never_decoded(seed, tags, scale):
    """Nor has it a chance, whatever the emissions say."""
    rng = default_rng(seed)
    emissions, _, mask = random_batch(rng, 4, 12, len(tags), 1.0)
    # often absurd
    emissions = torch.where(torch.from_numpy(rng.random(emissions.shape) < 0.2), emissions, -scale)
    never = posteriors.forbidden(tags)
    chain = crf.constrain(random_chain(rng, len(tags), 3.0), tags)
    for row, length in zip(best_paths(emissions, mask, chain).tolist(), mask.sum(1).tolist(), strict=True):
        assert not never[1][row[0]]
        assert not never[2][row[length - 1]]
        assert not any(never[0][a, b] for a, b in pairwise(row[:length]))
    posterior = sums(emissions, mask, chain).marginals
    assert (posterior[:, 0][:, never[1]] == 0).all()
    assert_close(posterior.sum(2), mask.double())


def test_training_on_what_is_forbidden_stays_finite():
    chain = CRF(len(BIO))()
    emissions = torch.zeros(1, 2, len(BIO), requires_grad=True)
    wrong = torch.tensor([[0, BIO.index("I-PER")]])
    loss = crf.nll(emissions, wrong, torch.ones(1, 2, dtype=torch.bool), crf.constrain(chain, BIO))
    loss.sum().backward()
    assert float(loss.detach()) == pytest.approx(-crf.FORBIDDEN, rel=1e-6)
    assert emissions.grad.isfinite().all()
    assert float(crf.nll(emissions.detach(), wrong, torch.ones(1, 2, dtype=torch.bool), chain).detach()) < 4


# --- extremes


def reference_loss(emissions, chain):
    """Of one sentence whose words all have tag 0, word by word in fp64."""
    total = chain.start.double() + emissions[0].double()
    for word in emissions[1:].double():
        total = (total[:, None] + chain.transitions.double()).logsumexp(0) + word
    first = [
        emissions[:, 0],
        chain.transitions[0, 0].expand(len(emissions) - 1),
        chain.start[:1],
        chain.end[:1],
    ]
    return (total + chain.end.double()).logsumexp(0) - torch.cat(first).double().sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.01, 5.0, 50.0])
def test_long_sentences_with_large_scores(dtype, scale):
    rng = default_rng(3)
    emissions = torch.from_numpy(rng.uniform(-scale, scale, (2, 512, 9))).to(dtype).requires_grad_()
    chain = Chain(*(torch.from_numpy(rng.uniform(-scale, scale, s)).to(dtype) for s in ((9, 9), (9,), (9,))))
    mask = torch.arange(512) < torch.tensor([[512], [300]])
    found = crf.nll(emissions, torch.zeros(2, 512, dtype=torch.int64), mask, chain)
    expected = torch.stack([reference_loss(emissions[0], chain), reference_loss(emissions[1, :300], chain)])
    assert found.dtype == dtype
    assert_close(found.double(), expected, rtol=1e-6, atol=0)
    ours, theirs = (torch.autograd.grad(x.sum(), emissions)[0] for x in (found, expected))
    assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@given(
    st.integers(0, 2**32), st.floats(0.01, 60), st.floats(0.01, 60), st.sampled_from([BIO, BIOES, ["O"] * 4])
)
def test_scaled_sums_equal_logarithms_wherever_they_are_used(seed, high, steep, tags):
    """Every score is at one end of its range or the other."""
    rng = default_rng(seed)
    emissions, _, mask = random_batch(rng, 3, 40, len(tags), 1.0)
    emissions = emissions.sign() * high
    chain = Chain(*(x.sign() * steep for x in random_chain(rng, len(tags), 1.0)))
    chain = crf.constrain(chain, tags)
    if needs_logarithms(emissions, mask, chain):
        return
    found = forward_backward.posterior(emissions, mask, chain)
    logs = forward_backward._log_posterior(emissions, mask, chain)
    assert_close(found, logs, rtol=1e-9, atol=1e-12)
    with pytest.MonkeyPatch.context() as patch:
        use_scan(patch)
        assert not needs_logarithms(emissions, mask, chain)
        scan = forward_backward.posterior(emissions, mask, chain)
    assert_close(scan, logs, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("way")
def test_a_sentence_too_short_for_what_is_not_forbidden():
    """It must begin with tag 0 and end with tag 1; one word cannot be both."""
    chain = Chain(*(torch.zeros(s, dtype=torch.float64) for s in ((2, 2), (2,), (2,))))
    chain.start[1] = chain.end[0] = crf.FORBIDDEN
    emissions = torch.zeros(2, 3, 2, dtype=torch.float64)
    mask = torch.tensor([[True] * 3, [True, False, False]])
    expected = torch.tensor([np.log(2), crf.FORBIDDEN + np.log(2)])
    found = sums(emissions, mask, chain)
    assert_close(found.log_partition, expected)
    first = torch.tensor([[1, 0], [0.5, 0.5]], dtype=torch.float64)
    for table in (found.marginals, marginals(emissions, mask, chain)):
        assert_close(table[:, 0], first, rtol=1e-6, atol=1e-6)


def test_fp32_finds_the_best_path_of_large_scores():
    """As if they were fp64: what all tags of a word have in common is not added up."""
    emissions, _, mask = random_batch(default_rng(4), 4, 512, 9, 1.0)
    chain = random_chain(default_rng(4), 9, 1.0)
    offset = torch.linspace(-1e4, 3e4, 512).floor()[:, None]
    emissions = emissions.mul(64).round().div(64)  # so that fp32 holds them exactly, with the offset
    assert torch.equal((emissions + offset).float().double(), emissions + offset)
    found = best_paths((emissions + offset).float(), mask, chain)
    assert torch.equal(found, best_paths(emissions, mask, chain))


def test_nan_stays_in_its_sentence():
    emissions, tags, mask = random_batch(default_rng(5), 3, 6, 4, 1.0)
    chain = random_chain(default_rng(5), 4, 1.0)
    whole = crf.nll(emissions, tags, mask, chain)
    emissions[0, 2, 1] = torch.nan
    broken = emissions.clone().requires_grad_()
    loss = crf.nll(broken, tags, mask, chain)
    loss.sum().backward()
    assert loss[0].isnan()
    assert_close(loss[1:], whole[1:])
    assert broken.grad[0].isnan().any()
    assert broken.grad[1:].isfinite().all()
    found = best_paths(emissions, mask, chain)
    assert ((found >= 0) == mask).all()
    assert (found < 4).all()
    for value in (torch.nan, torch.inf):
        emissions[0, 2, 1] = 0
        chain.transitions[1, 2] = value
        assert not crf.nll(emissions, tags, mask, chain)[0].isfinite()


def test_minus_infinity_is_an_emission_too():
    emissions, _, mask = random_batch(default_rng(6), 3, 6, 4, 1.0)
    chain = random_chain(default_rng(6), 4, 1.0)
    emissions[:, :, 2] = -torch.inf
    fewer = Chain(chain.transitions[:2, :2], chain.start[:2], chain.end[:2])
    emissions[:, :, 3] = -torch.inf
    found = sums(emissions, mask, chain)
    assert_close(found.log_partition, sums(emissions[:, :, :2], mask, fewer).log_partition)
    assert (found.marginals[:, :, 2:] == 0).all()


# --- batches


@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_padding_and_order_change_nothing(scale):
    rng = default_rng(7)
    emissions, tags, mask = random_batch(rng, 12, 30, 9, scale)
    chain = random_chain(rng, 9, scale, holes=True)
    other = emissions.masked_fill(~mask[..., None], torch.nan)
    strange = tags.masked_fill(~mask, -100)
    longer = torch.nn.functional.pad(emissions, (0, 0, 0, 5), value=3.0)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    more = torch.nn.functional.pad(mask, (0, 5))
    # logarithms of sums grow with the scores, and their rounding with them
    close = partial(assert_close, rtol=1e-12 * scale, atol=1e-12 * scale)
    for function in (best_paths, marginals, lambda *given: sums(*given).marginals):
        whole = function(emissions, mask, chain)
        close(function(other, mask, chain), whole)
        close(function(longer, more, chain)[:, :30], whole)
        close(function(emissions[order], mask[order], chain), whole[order])
    whole = crf.nll(emissions, tags, mask, chain)
    assert torch.equal(crf.nll(other, strange, mask, chain), whole)
    close(crf.nll(longer, torch.nn.functional.pad(tags, (0, 5)), more, chain), whole)
    close(crf.nll(emissions[order], tags[order], mask[order], chain), whole[order])
    inputs = other.clone().requires_grad_()
    crf.nll(inputs, strange, mask, chain).sum().backward()
    assert (inputs.grad[~mask] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_results_are_fp32_or_wider(dtype):
    emissions, tags, mask = random_batch(default_rng(8), 3, 6, 4, 1.0)
    emissions = emissions.to(dtype).requires_grad_()
    module = CRF(4).to(dtype)
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    loss = crf.nll(emissions, tags, mask, crf.constrain(module(), BIO[:4]))
    loss.sum().backward()
    assert loss.dtype == expected
    assert emissions.grad.dtype == dtype


def test_autocast_changes_nothing():
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 5)
    module = CRF(5)
    hidden = torch.randn(3, 7, 6)
    mask = torch.ones(3, 7, dtype=torch.bool)
    tags = torch.randint(5, (3, 7))
    with torch.autocast("cpu", torch.bfloat16):
        emissions = layer(hidden)
        inside = crf.nll(emissions, tags, mask, module())
    assert emissions.dtype == torch.bfloat16
    assert inside.dtype == torch.float32
    assert torch.equal(inside, crf.nll(emissions.float(), tags, mask, module()))
    inside.sum().backward()
    assert layer.weight.grad.isfinite().all()


# --- the module, in models


def test_a_checkpoint_without_the_chain(tiny_encoder):
    model = BY_ID["ner-crf"].task(tiny_encoder).model(encoder(tiny_encoder))
    assert all((parameter == 0).all() for parameter in model.crf.parameters())


def test_a_sentence_weighs_as_much_as_its_words_do_on_average():
    """Of three words and of one: weights of 1 change nothing, of 2 double the loss, others by their mean."""
    torch.manual_seed(3)
    logits = torch.randn(4, 3)
    labels = torch.tensor([0, 1, 1, 2])
    chain = CRF(3)()
    heads = torch.tensor([[0, 1, 2], [0, -1, -1]])
    batch = {"row": torch.tensor([0, 1]), "heads": heads}
    plain = chain_loss(logits, labels, None, chain, batch)
    for factor in (1.0, 2.0):
        weighted = chain_loss(logits, labels, torch.full((3,), factor), chain, batch)
        torch.testing.assert_close(weighted, factor * plain)
    alone = chain_loss(logits[:3], labels[:3], None, chain, {"row": batch["row"][:1], "heads": heads[:1]})
    weighted = chain_loss(logits, labels, torch.tensor([1.0, 4.0, 0.0]), chain, batch)
    torch.testing.assert_close(weighted, 3 * alone)  # (1 + 4 + 4) / 3, and nothing


def test_marginals_are_those_of_the_loss():
    """Of 1,000 sentences of up to 12 words, with scores from tame to wild, and of long ones."""
    rng = default_rng(1)
    scales = (0.1, 1.0, 5.0, 60.0, 400.0)
    sizes = [(8, 1 + n % 12, scales[n % 5], (["O"] * (1 + n % 7), BIO, BIOES)[n % 3]) for n in range(125)]
    for batch, words, scale, tags in [*sizes, *((2, 2000, scale, BIOES) for scale in (0.01, 5.0, 50.0))]:
        emissions, _, mask = random_batch(rng, batch, words, len(tags), scale)
        parts = [part.numpy() for part in random_chain(rng, len(tags), scale)]
        chain = Chain(*map(torch.from_numpy, posteriors.constrained(parts, tags, 0.7)))
        expected = sums(emissions, mask, chain).marginals
        assert_close(marginals(emissions, mask, chain), expected, rtol=0, atol=1e-9)


def test_no_spans_have_no_posteriors():
    emissions, tags, mask = random_batch(default_rng(3), 2, 1, 5, 1.0)
    scores, *given = in_numpy(emissions, mask, random_chain(default_rng(3), 5, 1.0))
    found = posteriors.posterior(scores, *given)
    nothing = np.empty((0, 3), dtype=np.int64)
    never = np.zeros((5, 5), dtype=bool)
    assert posteriors.span_posteriors(found, *given, tags.numpy(), nothing, never).shape == (0,)
