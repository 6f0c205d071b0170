"""A deprecation at a line that is not the reader's stays out of the cell; all else is shown."""

from __future__ import annotations

import warnings

import pytest

from labkit.base.deprecations import hide_deprecations
from labkit.launch import launch

SAID = "Backend._set_sequence_number_for_group() is deprecated"


@pytest.mark.parametrize(
    ("text", "kind", "module", "shown"),
    [
        (SAID, UserWarning, "labkit.link", False),
        ("it has a new name", FutureWarning, "labkit.train.trainer", False),
        ("it has a new name", FutureWarning, "torch.nn.parallel.distributed", False),
        ("loss is nan", UserWarning, "labkit.train.trainer", True),
        ("loss is nan", UserWarning, "torch.optim.lr_scheduler", True),
        *((SAID, kind, module, True) for kind in (UserWarning, FutureWarning) for module in ("__main__", "labkit.dp")),
    ],
)
def test_only_deprecations_at_lines_of_torch_and_of_the_lab_are_hidden(text, kind, module, shown):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hide_deprecations()
        warnings.warn_explicit(text, kind, "file.py", 1, module)
    assert [str(each.message) for each in caught] == [text] * shown


def test_that_holds_in_a_rank(capfd):
    def deprecates():
        for module in ("labkit.link", "__main__"):
            warnings.warn_explicit(f"{module} calls what is deprecated", FutureWarning, "file.py", 1, module)

    launch(deprecates, world_size=1, backend="gloo")
    printed = "".join(capfd.readouterr())
    assert "__main__ calls what is deprecated" in printed and "labkit.link calls" not in printed
