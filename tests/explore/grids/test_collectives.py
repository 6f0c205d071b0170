"""labkit.explore.grids.collectives: what seven collectives do, seen in real ranks."""

from labkit.explore.grids.collectives import SEVEN, seen_collectives

# By hand, as MPI's standard draws them: a letter for each rank's tensor; . is nothing, S the sum.
DRAWN = {
    "broadcast": ("aaa ... ...", "aaa aaa aaa"),
    "scatter": ("aaa ... ...", "a.. .a. ..a"),
    "gather": ("a.. .b. ..c", "abc ... ..."),
    "all_gather": ("a.. .b. ..c", "abc abc abc"),
    "reduce": ("aaa bbb ccc", "SSS ... ..."),
    "reduce_scatter": ("aaa bbb ccc", "S.. .S. ..S"),
    "all_reduce": ("aaa bbb ccc", "SSS SSS SSS"),
}
LETTERS = {"0": "a", "1": "b", "2": "c", "Σ": "S"}
WORDS = {"whole sum": "the sum of all 3 ranks' chunks"} | {
    f"from rank {r}": f"what rank {r} had there" for r in range(3)
}


def as_drawn(panel, step):
    cells = panel.bars[(panel.bars["appear"] == step) & (panel.bars["left"] // 4 == step)]
    assert all(WORDS[cell.name] in panel.explain(cell.Index) for cell in cells.itertuples())
    has = {(int(cell.top), int(cell.left) - 4 * step): LETTERS[cell.label] for cell in cells.itertuples()}
    return " ".join("".join(has.get((rank, chunk), ".") for chunk in range(3)) for rank in range(3))


def test_real_ranks_have_before_and_after_what_the_standard_draws():
    seen = seen_collectives(3)
    assert list(seen) == list(SEVEN)
    assert {name: (as_drawn(panel, 0), as_drawn(panel, 1)) for name, panel in seen.items()} == DRAWN
    for panel in seen.values():
        sent = {chunk: set() for chunk in panel.bars.index[panel.bars["appear"] == 1]}
        for source, chunk in panel.links[["source", "target"]].to_numpy():
            sent[chunk].add(panel.bars["label"][source])
        for chunk, ranks in sent.items():
            label = panel.bars["label"][chunk]
            assert ranks == ({"0", "1", "2"} if label == "Σ" else {label}), "it comes from where it says"
