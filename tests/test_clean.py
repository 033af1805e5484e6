"""What a finished run keeps of its checkpoints."""

import pytest
import small
from small import files

SHORT = ("seeds=[1, 2]", "peft={r: 2}")


@pytest.fixture(scope="module")
def kept(tiny_encoder, tmp_path_factory):
    """A finished run of two seeds that keeps its checkpoints."""
    room = tmp_path_factory.mktemp("kept")
    return small.trained(room, tiny_encoder, *SHORT)


def folders(run):
    """The folders of the seeds, and those in them."""
    return {
        str(path.relative_to(run.checkpoints))
        for path in run.checkpoints.glob("**/")
        if path != run.checkpoints
    }


def loser(run):
    """The seed whose model was not published."""
    return 2 if run.results["seeds"][0]["headline"] >= run.results["seeds"][1]["headline"] else 1


@pytest.mark.parametrize("keep", ["best", "none"])
def test_a_run_keeps_what_its_recipe_says(keep, kept, tiny_encoder, tmp_path):
    run = small.trained(tmp_path, tiny_encoder, *SHORT, f"checkpoints={keep}")
    assert files(run.model) == files(kept.model) | {"README.md": (run.model / "README.md").read_bytes()}
    best = {"seed-1", "seed-2", f"seed-{loser(run)}/model", f"seed-{loser(run)}/adapter"}
    assert folders(run) == {"best": best, "none": set()}[keep]
    assert len(folders(kept)) > len(best)
    if keep != "none":
        own, other = (files(each.checkpoints / f"seed-{loser(run)}/model") for each in (run, kept))
        assert own == other
