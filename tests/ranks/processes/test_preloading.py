"""What the server of ranks imports before it starts a rank."""

from __future__ import annotations

import selectors
import socket

import pytest

from labkit.ranks.processes.fork_server import FIRST, FIRST_WITH_MODELS, NEXT, _ForkServer

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
