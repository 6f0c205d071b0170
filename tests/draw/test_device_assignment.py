"""labkit.draw.rank_devices: each rank beside the devices it drives, and the same in words."""

import pytest
from matplotlib.text import Annotation

from labkit.draw import describe_rank_devices, rank_devices
from labkit.parallel.devices import device_ids


def shown(figure):
    """Return for each node, rank and device what stands there."""
    found = {}
    for node, ax in enumerate(figure.axes):
        rows, columns = ([label.get_text() for label in axis.get_ticklabels()] for axis in (ax.yaxis, ax.xaxis))
        cells = [(text.get_text(), text.get_position()) for text in ax.texts if not isinstance(text, Annotation)]
        found |= {(node, rows[int(y)], columns[int(x)]): label for label, (x, y) in cells}
    return found


def test_each_rank_stands_beside_its_gpus_on_every_node_or_on_the_cpu_and_so_do_the_words():
    nodes = [[device_ids(rank, 2, 4) for rank in range(2)]] * 2
    places = [(rank // 2, f"rank {rank}", f"GPU {2 * (rank % 2) + part}") for rank in range(4) for part in range(2)]
    assert shown(rank_devices(nodes, 4)) == {place: f"part {i % 2}" for i, place in enumerate(places)}
    words = "Rank 0 drives GPU 0 and GPU 1 of node 0; rank 1 drives GPU 2 and GPU 3 of node 0."
    assert describe_rank_devices(nodes[:1]) == words
    nodes = [[[], [0]], [[]]]
    whole = [(0, "rank 0", "CPU"), (0, "rank 1", "GPU 0"), (1, "rank 2", "CPU")]
    assert shown(rank_devices(nodes, 1)) == dict.fromkeys(whole, "whole")
    assert describe_rank_devices(nodes[1:]) == "Rank 0 drives the CPU of node 0."


@pytest.mark.parametrize(
    ("nodes", "complaint"),
    [
        ([], "expected one or more, each with one or more ranks"),
        ([[[0]], []], "expected one or more, each with one or more ranks"),
        ([[[0], [2]]], "node 0 has GPUs 0 to 1, and a rank there drives GPU 2"),
        ([[[0], [1]], [[1], [0, 1]]], "two ranks of node 1 drive GPU 1"),
    ],
)
def test_what_cannot_be_is_refused(nodes, complaint):
    with pytest.raises(ValueError, match=complaint):
        rank_devices(nodes, 2)
