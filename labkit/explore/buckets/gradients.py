"""Say how large a model's gradients are, and when the backward pass makes them.

The numbers of four models stand in ``gradients.json``, which ``data/make_gradients.py`` writes:
times are by count of FLOPs on an assumed GPU.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

MODELS = ("gpt2", "bert", "convnet", "mlp")


@dataclass(frozen=True)
class Gradients:
    """The gradients of a model, by parameter index, and when backward makes each.

    ``ready_s`` counts from the start of backward, which is over at ``backward_s``; ``source`` says
    where these times are from.
    """

    model: str
    names: Sequence[str]
    sizes_bytes: Sequence[int]
    ready_s: Sequence[float]
    source: str

    @property
    def backward_s(self) -> float:
        return max(self.ready_s)

    @property
    def n_bytes(self) -> int:
        return sum(self.sizes_bytes)

    def order(self) -> list[int]:
        """Return the parameters in the order in which their gradients are ready.

        Of two at the same time, the later parameter comes first, as backward goes backwards.
        """
        return sorted(range(len(self.names)), key=lambda i: (self.ready_s[i], -i))

    def lasting(self, backward_s: float) -> Gradients:
        """Return the same gradients from a backward pass that takes ``backward_s`` in all."""
        stretch = backward_s / self.backward_s
        return replace(self, ready_s=[stretch * ready for ready in self.ready_s])


def predicted_gradients(name: str = "gpt2") -> Gradients:
    """Return the gradients of a model of MODELS, their times by the FLOPs before each.

    A batch of another size stretches all times alike (:meth:`Gradients.lasting`). Raises ValueError
    for another name.
    """
    if name not in MODELS:
        raise ValueError(f"model is {name!r}, expected one of {', '.join(MODELS)}")
    model = _all_models()[name]
    names, sizes_bytes, ready_s = zip(*model["parameters"], strict=True)
    return Gradients(model["title"], names, sizes_bytes, ready_s, model["source"])


@functools.cache
def _all_models() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("gradients.json").read_text(encoding="utf-8"))
