"""Write the same SVG picture in a fifth of the bytes.

Matplotlib writes a hatching as a tile of 72 points with thousands of dots, a path for each bar and
a group around everything. Here a tile is as large as what repeats, neighbours that look alike are
one path, groups that say nothing go, and coordinates are tenths of a point.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

_SVG = "http://www.w3.org/2000/svg"
_GROUP, _PATH, _PATTERN = f"{{{_SVG}}}g", f"{{{_SVG}}}path", f"{{{_SVG}}}pattern"


def small_svg(svg: bytes) -> bytes:
    """Return the picture that matplotlib wrote, made small."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(svg)
    for pattern in list(root.iter(_PATTERN)):
        _cut_to_one_tile(pattern)
    _tidy(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _tidy(element: Element) -> None:
    """Shorten all that is in an element, without the groups that only have a name."""
    element.text, element.tail = (element.text or "").strip(), ""
    element.attrib.update({name: _short(name, value) for name, value in element.attrib.items()})
    children = list[Element]()
    for child in _joined(element):
        _tidy(child)
        unnamed = child.tag == _GROUP and not child.attrib.keys() - {"id"}
        children += child if unnamed else [child]
    element[:] = children


def _cut_to_one_tile(pattern: Element) -> None:
    """Cut a hatching down to what repeats: two of its lines, or of its rows of dots."""
    path = pattern[-1]
    marks = {mark: _points(mark) for mark in re.findall(r"M[^M]+", path.attrib["d"])}
    first, second, *_ = (points[0] for points in marks.values())
    tile = round(2 * float(abs(first - second).max()))  # 2, as rows of dots take turns
    reach = [mark for mark, at in marks.items() if (at.min(axis=0) <= tile + 1).all() and (at.max(axis=0) >= -1).all()]
    path.attrib["d"] = "".join(reach)
    for element in pattern.iter():
        element.attrib.update({side: str(tile) for side in ("width", "height") if side in element.attrib})


def _points(outline: str) -> np.ndarray:
    return np.array(re.findall(r"-?[\d.]+", outline), dtype=float).reshape(-1, 2)


def _short(name: str, value: str) -> str:
    if name == "d":
        return _short_outline(value)
    if name == "transform":
        return re.sub(r"[\d.]+", lambda number: f"{float(number[0]):.5g}", value)
    return value.replace("; ", ";").replace(": ", ":") if name == "style" else value.replace("DejaVuSans-", "d")


def _short_outline(outline: str) -> str:
    """Return an outline in tenths of a point, with H and V for lines that are level and upright."""
    short, x, y = "", "", ""
    for command, numbers in re.findall(r"([A-Za-z])([^A-Za-z]*)", outline):
        at = [_tenths(number) for number in numbers.split()]
        if command == "L" and y == at[1]:
            short += f"H{at[0]}" if x != at[0] else ""
        elif command == "L" and x == at[0]:
            short += f"V{at[1]}"
        else:
            short += command + " ".join(at)
        x, y = at[-2:] or (x, y)
    return short


def _tenths(number: str) -> str:
    return f"{float(number):.1f}".removesuffix(".0")


def _joined(children: Iterable[Element]) -> Iterator[Element]:
    """Give what is in a group, with paths that look alike and follow each other as one."""
    for look, alike in itertools.groupby(children, lambda child: (child.tag, {**child.attrib, "d": ""})):
        first, *others = alike
        if look[0] == _PATH and others:
            first.attrib["d"] = "".join(path.attrib.get("d", "") for path in (first, *others))  # one may be of nothing
            others = []
        yield from (first, *others)
