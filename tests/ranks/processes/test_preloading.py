"""What the server of ranks imports before it starts a rank."""

from __future__ import annotations

import selectors
import socket
import time

import pytest

from labkit.ranks.processes.fork_server import FIRST, FIRST_WITH_MODELS, NEXT, _ForkServer
from labkit.ranks.processes.imported_lab import ImportedLab

PACKAGES = ["json this_is_not_there", "json.tool", "json.decoder"]


@pytest.mark.parametrize(
    ("request_", "packages", "left"),
    [
        (FIRST, PACKAGES, PACKAGES[1:]),
        (FIRST, PACKAGES[1:], PACKAGES[2:]),
        (FIRST, PACKAGES[2:], PACKAGES[2:]),
        (NEXT, PACKAGES, PACKAGES),
        (FIRST_WITH_MODELS, PACKAGES, []),
    ],
)
@pytest.mark.parametrize("in_use", [[], [1]])
def test_a_launch_has_the_next_packages_imported_or_all_if_the_notebook_has_models(request_, packages, left, in_use):
    notebooks, servers = socket.socketpair()
    with notebooks, servers:
        server = _ForkServer(servers, [*packages], fork=False)
        server.controls = dict.fromkeys(in_use, notebooks)
        server.selector.register(servers, selectors.EVENT_READ)  # as it serves
        notebooks.send(request_)
        server._handle_request()
        server.selector.close()
    assert server.packages == left


def test_a_module_of_the_lab_that_was_imported_later_counts_and_an_older_one_stays_as_it_was():
    now = ImportedLab.now(time.time_ns())
    first, *others = now.stamps
    earlier = now._replace(stamps={first: (1, 1)})  # as it was, before somebody changed it
    both = earlier.and_since(time.time_ns())
    assert both.stamps == now.stamps | {first: (1, 1)} and len(others) > 10
    assert now.is_current() and not both.is_current()
