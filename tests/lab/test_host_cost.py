"""The host cost is what a row of calls takes beyond the link's own time, shared out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from labkit.cost import Link
from labkit.lab import host_cost
from labkit.trace import event_table


@pytest.mark.parametrize(("latency_s", "expected_s"), [(0.0, 1.0), (0.25, 0.5), (9.0, 0.0)])
def test_the_host_cost_is_the_median_row_less_the_links_time_for_each_call(monkeypatch, latency_s, expected_s):
    """Rows of ten calls that take 9, 10 and 40 s; on two ranks a call waits for two latencies."""
    rows = [(0, "comm", "row of calls", None, None, None, None, None, 0.0, seconds) for seconds in (9.0, 10.0, 40.0)]
    launches = []
    monkeypatch.setattr(
        host_cost, "launch", lambda *_, **options: launches.append(options) or SimpleNamespace(events=event_table(rows))
    )
    link = Link(latency_s, 1e18)
    assert host_cost.host_cost_s(link, calls=10) == pytest.approx(expected_s)
    assert [each.get("link") for each in launches] == [link]
