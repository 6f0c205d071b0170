"""labkit.draw.rank_devices: each rank beside the devices it drives, and the same in words."""

import pytest
from drawn_artists import on_screen, overlapping

from labkit.draw import describe_rank_devices, rank_devices, save
from labkit.draw.picture import drawn_data
from labkit.parallel.devices import device_ids


def nodes_of(n_nodes, local_world_size, n_gpus):
    return [[device_ids(rank, local_world_size, n_gpus) for rank in range(local_world_size)]] * n_nodes


def shown(figure):
    """Node -> (names of its rows, {(row, column): what stands there})."""
    found = {}
    for ax in figure.axes:
        labels = [text.get_text() for text in ax.texts]
        title = next(label for label in labels if label.startswith("node "))
        rows = [label.get_text() for label in ax.get_yticklabels()]
        columns = [label.get_text() for label in ax.get_xticklabels()]
        cells = {}
        for text in ax.texts:
            if text.get_text() != title:
                x, y = text.get_position()
                cells[rows[int(y)], columns[int(x)]] = text.get_text()
        found[title] = cells
    return found


def test_each_rank_stands_beside_its_gpus_on_every_node():
    assert shown(rank_devices(nodes_of(2, 2, 4), 4)) == {
        f"node {node}": {
            (f"rank {2 * node}", "GPU 0"): "part 0",
            (f"rank {2 * node}", "GPU 1"): "part 1",
            (f"rank {2 * node + 1}", "GPU 2"): "part 0",
            (f"rank {2 * node + 1}", "GPU 3"): "part 1",
        }
        for node in range(2)
    }


def test_a_rank_without_a_gpu_has_its_model_on_the_cpu():
    assert shown(rank_devices([[[], [0]], [[]]], 1)) == {
        "node 0": {("rank 0", "CPU"): "whole", ("rank 1", "GPU 0"): "whole"},
        "node 1": {("rank 2", "CPU"): "whole"},
    }


def test_it_is_saved_with_its_data_and_the_words_are_its_alt_text(figures):
    nodes = nodes_of(1, 2, 4)
    words = "Rank 0 drives GPU 0 and GPU 1 of node 0; rank 1 drives GPU 2 and GPU 3 of node 0."
    assert describe_rank_devices(nodes) == words
    figure = rank_devices(nodes, 4)
    assert drawn_data(figure)["label"].tolist() == ["part 0", "part 1"] * 2
    picture = save(figure, "ranks", alt=describe_rank_devices(nodes))
    assert picture.alt == words and {path.name for path in figures.iterdir()} >= {"ranks.png", "ranks.csv"}


@pytest.mark.parametrize(("n_nodes", "local_world_size", "n_gpus"), [(1, 1, 1), (2, 2, 4), (4, 4, 8), (3, 8, 16)])
def test_no_label_lies_on_another(n_nodes, local_world_size, n_gpus):
    figure = rank_devices(nodes_of(n_nodes, local_world_size, n_gpus), n_gpus)
    figure.canvas.draw()
    texts = [text for ax in figure.axes for text in (*ax.texts, *ax.get_xticklabels(), *ax.get_yticklabels())]
    texts += figure.legends[0].get_texts()
    boxes = [(text.get_text(), on_screen(text)) for text in texts if text.get_text()]
    for number, (name, box) in enumerate(boxes):
        for other, other_box in boxes[:number]:
            assert not overlapping(box, other_box), f"{name} lies on {other}"


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
