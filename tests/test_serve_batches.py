"""The batcher: rows that wait are answered together, each for whom it belongs to."""

import asyncio
import logging
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import SECRET, Model, bug

from bertkit.errors import DataError
from bertkit.serving.batcher import Batcher, estimated_tokens
from bertkit.serving.limits import Limits, Refused
from bertkit.serving.prometheus import Metrics


def row(number, size=1, **more):
    """A row of so many tokens."""
    return {"n": number, "text": "x" * (4 * (size - 1)), **more}


def batched(work, model=None, **limits):
    """Run `work` with a batcher around the model."""
    model = model or Model()

    async def run():
        async with Batcher(model, Limits(**limits), Metrics()) as batcher:
            try:
                await work(batcher, model)
            finally:
                model.may.set()

    asyncio.run(run())
    return model


async def waiting(batcher, model, *jobs):
    """What each of these jobs gets that come while the model is busy with another."""
    first = asyncio.create_task(batcher.answers([row(-1)], "first"))
    await asyncio.to_thread(model.busy.wait)
    tasks = [asyncio.create_task(batcher.answers(rows, key)) for rows, key in jobs]
    await asyncio.sleep(0)
    model.may.set()
    await first
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_tokens_are_a_quarter_of_the_bytes():
    assert estimated_tokens({"text": "x" * 400}) == 101
    assert estimated_tokens({"tokens": ["abcd", "efgh"], "document": 3}) == 3
    assert estimated_tokens({"question": "été " * 10, "context": "好" * 10}) == 1 + 15 + 7 - 1 + 1
    assert estimated_tokens({"text": "\ud800"}) == 1


def test_what_waits_goes_together_up_to_the_budget():
    async def work(batcher, model):
        jobs = [([row(10 * job + n, size=10) for n in range(3)], "same") for job in range(4)]
        found = await waiting(batcher, model, *jobs)
        assert found == [[{"n": 10 * job + n} for n in range(3)] for job in range(4)]

    model = batched(work, max_batch_tokens=70)
    assert model.calls == [[-1], [0, 1, 2, 10, 11, 12, 20], [21, 22, 30, 31, 32]]


def test_rows_that_may_not_be_mixed_are_not_and_nobody_is_passed_over():
    async def work(batcher, model):
        jobs = [
            ([row(0)], "a"),
            ([row(1), row(2)], None),
            ([row(3)], "b"),
            ([row(4)], "a"),
            ([row(5, 99)], "b"),
        ]
        assert await waiting(batcher, model, *jobs) == [[{"n": r["n"]} for r in rows] for rows, _ in jobs]

    assert batched(work, max_batch_tokens=20).calls == [[-1], [0, 4], [1, 2], [3], [5]]


def test_a_request_that_fails_fails_alone(caplog):
    async def work(batcher, model):
        jobs = [[row(0), row(1)], [row(2), row(3, bad="data")], [row(4, bad="bug")], [row(5)]]
        found = await waiting(batcher, model, *((rows, "same") for rows in jobs))
        assert found[0] == [{"n": 0}, {"n": 1}]
        assert found[3] == [{"n": 5}]
        assert str(found[1]) == "row 2: bad"
        assert (found[2].status, SECRET in str(found[2])) == (500, False)

    with caplog.at_level(logging.DEBUG):
        batched(work)
    assert "ZeroDivisionError" in caplog.text
    assert SECRET not in caplog.text


def test_a_part_that_fails_is_told_by_the_rows_of_its_request():
    async def work(batcher, model):
        model.may.set()
        with pytest.raises(DataError, match="row 5: bad"):
            await batcher.answers([*(row(n, 10) for n in range(4)), row(4, 10, bad="data")], "same")

    assert batched(work, max_batch_tokens=20).calls == [[0, 1], [2, 3], [4], [0, 1, 2, 3, 4]]


def test_a_function_that_fails_in_the_models_thread_is_refused():
    async def work(batcher, model):
        def panic():
            raise BaseException(SECRET)

        with pytest.raises(Refused, match="see the server's log") as refused:
            await batcher.call(panic)
        assert refused.value.status == 500
        model.may.set()
        assert await batcher.answers([row(0)], "same") == [{"n": 0}]

    batched(work)


def test_too_late():
    async def work(batcher, model):
        found = await asyncio.gather(
            batcher.answers([row(0)], "a"), batcher.answers([row(1)], "b"), return_exceptions=True
        )
        assert [(each.status, each.headers) for each in found if isinstance(each, Refused)] == [
            (504, None),
            (503, {"Retry-After": "1"}),
        ]
        with pytest.raises(Refused, match="the model did not answer in time"):
            await batcher.call(lambda: None)
        model.may.set()
        await batcher.call(lambda: None)  # after the call that was too late
        assert await batcher.answers([row(2)], "c") == [{"n": 2}]

    assert batched(work, timeout=1).calls == [[0], [2]]  # what nobody waits for is not answered


def test_clients_that_leave_are_no_longer_counted_as_waiting():
    """Whether some of their rows were given to the model, or none."""

    async def work(batcher, model):
        def gauge():
            return batcher._metrics.registry.get_sample_value("bertkit_waiting_requests")

        begun = asyncio.create_task(batcher.answers([row(n, 10) for n in range(3)], "a"))
        await asyncio.to_thread(model.busy.wait)
        queued = asyncio.create_task(batcher.answers([row(3)], "b"))
        await asyncio.sleep(0)
        assert gauge() == 1
        begun.cancel()
        queued.cancel()
        await asyncio.wait([begun, queued])
        model.may.set()
        assert await batcher.answers([row(4)], "c") == [{"n": 4}]
        assert gauge() == 0

    assert batched(work, max_batch_tokens=10).calls == [[0], [4]]


def test_on_exit_what_was_taken_in_is_finished():
    model = Model()

    async def run():
        async with Batcher(model, Limits(), Metrics()) as batcher:
            tasks = [asyncio.create_task(batcher.answers([row(n)], n)) for n in range(5)]
            await asyncio.sleep(0)
            model.may.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(run()) == [[{"n": n}] for n in range(5)]


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 9), min_size=1, max_size=6),
            st.sampled_from(["a", "b", None]),
            st.booleans(),
        ),
        max_size=12,
    ),
    st.integers(1, 20),
)
def test_every_row_is_answered_to_whom_it_belongs(jobs, budget):
    numbered = [
        ([row(100 * job + n, size, bad="data" if bad else "") for n, size in enumerate(sizes)], key, bad)
        for job, (sizes, key, bad) in enumerate(jobs)
    ]

    async def work(batcher, model):
        found = await waiting(batcher, model, *((rows, key) for rows, key, _ in numbered))
        for (rows, _, bad), answers in zip(numbered, found, strict=True):
            assert isinstance(answers, DataError) if bad else answers == [{"n": r["n"]} for r in rows]

    model = batched(work, max_batch_tokens=budget)
    every = {r["n"]: (r, key) for rows, key, _ in numbered for r in rows}
    fails = any(bad for _, _, bad in numbered)
    for call in (call for call in model.calls if call != [-1]):
        keys = {every[n][1] for n in call}
        owners = {n // 100 for n in call}
        assert len(keys) == 1
        assert len(owners) == 1 or None not in keys
        alone = len(owners) == 1 and (None in keys or fails)
        assert alone or len(call) == 1 or sum(estimated_tokens(every[n][0]) for n in call) <= budget
    if not fails:  # then nothing is asked twice
        assert Counter(n for call in model.calls for n in call) == Counter([-1, *every])


def test_whoever_waits_for_a_server_that_no_longer_answers_is_told(monkeypatch):
    async def work(batcher, model):
        first = asyncio.create_task(batcher.answers([row(0)], "same"))
        await asyncio.to_thread(model.busy.wait)
        second = asyncio.create_task(batcher.answers([row(1)], "same"))
        await asyncio.sleep(0)
        monkeypatch.setattr(Batcher, "_next_batch", bug)
        model.may.set()
        assert await first == [{"n": 0}]
        for waits in (second, batcher.answers([row(2)], "same")):
            with pytest.raises(Refused, match="no longer answers"):
                await waits

    batched(work)
