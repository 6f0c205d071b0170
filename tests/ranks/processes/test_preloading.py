"""What the server of ranks imports before it starts a rank."""

from __future__ import annotations

import selectors
import socket

import pytest

from labkit.ranks.processes.fork_server import USES_MODELS, _ForkServer


@pytest.mark.parametrize(("request_", "left"), [(b"r", ["json.tool", "json.decoder"]), (USES_MODELS, [])])
def test_a_request_has_the_next_packages_imported_or_all_if_the_notebook_has_models(request_, left):
    notebooks, servers = socket.socketpair()
    with notebooks, servers:
        server = _ForkServer(servers, ["json this_is_not_there", "json.tool", "json.decoder"], fork=False)
        server.selector.register(servers, selectors.EVENT_READ)  # as it serves
        notebooks.send(request_)
        server._handle_request()
        server.selector.close()
    assert server.packages == left
