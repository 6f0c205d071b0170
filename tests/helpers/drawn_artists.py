"""What the tests read off axes that labkit.draw has drawn: bars, numbers and legends."""

from itertools import combinations

from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from labkit.draw.palette import IDLE


def drawn_bars(ax):
    """Every bar as (left, right, top, bottom), in data units."""
    return [box for box, _ in coloured_bars(ax)]


def idle_boxes(ax):
    """Every grey box behind bars as (left, right, top, bottom)."""
    return [box for box, colour in coloured_bars(ax, zorder=1) if colour == IDLE]


def coloured_bars(ax, zorder=2):
    """Every bar as ((left, right, top, bottom), colour)."""
    boxes = []
    for collection in ax.collections:
        if not isinstance(collection, PolyCollection) or collection.get_zorder() != zorder:
            continue  # memory strips and idle cells lie behind
        colours = collection.get_facecolor()
        for i, path in enumerate(collection.get_paths()):
            (left, top), (right, bottom) = path.vertices[:4].min(axis=0), path.vertices[:4].max(axis=0)
            boxes.append(((left, right, top, bottom), to_hex(colours[i % len(colours)])))
    return boxes


def overlapping(one, other):
    """Whether two boxes (left, right, top, bottom) have a point in common, more than a side."""
    slack = 1e-6
    beside = one[1] <= other[0] + slack or other[1] <= one[0] + slack
    apart = one[3] <= other[2] + slack or other[3] <= one[2] + slack
    return not (beside or apart)


def on_screen(artist):
    """The box of a text or axes in pixels: left, right, bottom, top."""
    extent = artist.get_window_extent()
    return extent.x0, extent.x1, extent.y0, extent.y1


def assert_apart(texts):
    """None of these texts lies on another."""
    boxes = [(text.get_text(), on_screen(text)) for text in texts if text.get_text()]
    for (one, box), (other, other_box) in combinations(boxes, 2):
        assert not overlapping(box, other_box), f"{one} lies on {other}"
