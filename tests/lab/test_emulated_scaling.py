"""labkit.lab.emulated_scaling: speeds against one rank, of ways that share its batch or not."""

from labkit.lab.emulated_scaling import BY_CONSTRUCTION, emulated_scaling
from labkit.parallel.emulated_step import EmulatedStep

STEP = EmulatedStep(forward_s=0.01, backward_s=0.02, bucket_bytes=(2**14,))


def test_ranks_that_bring_their_own_batch_are_twice_as_fast_as_those_that_share_one_and_obey_the_formula():
    steps = dict.fromkeys([1, 2], STEP)
    table = emulated_scaling({"own": steps, "one": steps}, shared=["one"]).set_index(["way", "ranks"])
    ideal = 0.035 / STEP.predict(2, overlap=False)["end_s"].max()
    assert table.loc[("own", 2), "predicted"] == 2 * ideal and table.loc[("one", 2), "predicted"] == ideal
    assert table.loc[("own", 2), "speed"] <= 2 * ideal * 1.01  # a rank sleeps at least as long as it says
    assert BY_CONSTRUCTION in table.attrs["emulated"] and "ranks sleep" in table.attrs["emulated"]


def test_only_what_overlaps_hides():
    steps = dict.fromkeys([1, 2], EmulatedStep(0.01, 0.02))
    table = emulated_scaling({"late": steps, "overlap": steps}, overlap=["overlap"]).set_index(["way", "ranks"])
    assert table.loc[("overlap", 2), "hidden_s"] > 0.005 > 0.0005 > table.loc[("late", 2), "hidden_s"]
