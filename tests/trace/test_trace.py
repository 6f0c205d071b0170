"""labkit.trace: spans become rows of the event table, none lost, none invented."""

import json
import math
import threading
import time

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
from fake_gpus import FakeGpus

from labkit import trace
from labkit.trace import (
    EVENT_COLUMNS,
    TIMING_COLUMNS,
    event_table,
    pause,
    record,
    set_step,
    span,
    spans,
    timings,
    to_chrome_trace,
)


def test_a_span_is_one_row_with_its_labels_its_rank_and_its_time(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    with record() as recording:
        before = time.perf_counter()
        with span("all_reduce", lane="comm", step=4, stage=1, micro_batch=2, bucket=3, bytes=1024):
            time.sleep(0.02)
        outside = time.perf_counter() - before
        with span("forward", micro_batch=0):
            pass
    assert tuple(recording.events.columns) == EVENT_COLUMNS
    row = recording.events.iloc[0].to_dict()
    duration = row.pop("end_s") - row.pop("start_s")
    labels = {"step": 4, "stage": 1, "micro_batch": 2, "bucket": 3, "bytes": 1024}
    assert row == {"rank": 3, "lane": "comm", "name": "all_reduce", **labels}
    assert 0.02 <= duration <= outside <= recording.events["start_s"][1]  # the clock starts with the recording
    labels = recording.events.iloc[1][["step", "stage", "micro_batch", "bucket", "bytes"]]
    assert labels.pop("micro_batch") == 0 and labels.isna().all()
    assert str(recording.events["micro_batch"].dtype) == "Int64"


def test_spans_of_all_threads_have_the_step_that_is_set_unless_they_say_their_own():
    with record() as recording:
        set_step(4)
        thread = threading.Thread(target=lambda: span("in a thread").begin().end())
        thread.start()
        thread.join()
        span("own", step=7).begin().end()
        set_step(None)
        span("after").begin().end()
        set_step(5)
    with record() as again:
        span("of the next recording").begin().end()
    steps = {**dict(zip(recording.events["name"], recording.events["step"].fillna(-1), strict=True))}
    assert steps == {"in a thread": 4, "own": 7, "after": -1}
    assert again.events["step"].isna().all()
    with pytest.raises(TypeError, match="the number is 'one', expected a whole number"):
        set_step("one")


def test_a_block_that_raises_is_recorded_and_raises_on():
    with pytest.raises(KeyError), record() as recording:
        with pytest.raises(ZeroDivisionError), span("broken"):
            raise ZeroDivisionError
        raise KeyError
    assert list(recording.events["name"]) == ["broken"]


def test_spans_of_many_threads_are_all_there_and_keep_their_labels():
    n_threads, n_spans = 8, 500
    start_together = threading.Barrier(n_threads)

    def work(thread: int) -> None:
        start_together.wait()
        for i in range(n_spans):
            with span(f"thread {thread}", stage=thread, micro_batch=i):
                pass

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(n_threads)]
    with record() as recording:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = sorted(recording.events[["name", "stage", "micro_batch"]].itertuples(index=False, name=None))
    assert found == sorted((f"thread {thread}", thread, i) for thread in range(n_threads) for i in range(n_spans))


def test_a_recording_has_the_spans_that_begin_and_end_in_it_and_leaves_nothing_behind():
    with span("before"):
        early = span("began before").begin()
    with record() as recording:
        early.end()
        span("never begun").end()
        late = span("ends too late").begin()
        with pause(), span("paused"):
            pass
    late.end()
    assert recording.events.empty and spans._recorders == ()
    assert recording.timings.empty and list(recording.timings.columns) == list(TIMING_COLUMNS)


def test_unknown_lanes_and_labels_and_events_before_the_end_are_refused():
    with pytest.raises(ValueError, match=r"lane is 'gpu', expected one of compute, comm, host"):
        span("forward", lane="gpu")
    with pytest.raises(TypeError, match="microbatch"):
        span("forward", microbatch=1)
    with record() as recording, pytest.raises(RuntimeError, match="once the with block is over"):
        _ = recording.events


def rows_of_two_ranks() -> list[tuple]:
    """Return 1, 2, 4 s of forward and 0.5 s of backward on rank 1, then a backward on rank 0."""
    label = (None,) * 5
    return [
        (1, "compute", "forward", *label, 0.0, 1.0),
        (1, "compute", "backward", *label, 1.0, 1.5),
        (1, "compute", "forward", *label, 2.0, 4.0),
        (1, "compute", "forward", *label, 5.0, 9.0),
        (0, "compute", "backward", *label, 0.25, 3.25),
    ]


def test_timings_are_counts_sums_and_middles_by_rank_and_by_name_in_order_of_the_first_start():
    expected = [
        (0, "backward", 1, 3.0, 3.0, 3.0, 3.0, 3.0),
        (1, "forward", 3, 7.0, pytest.approx(7 / 3), 2.0, 1.0, 4.0),
        (1, "backward", 1, 0.5, 0.5, 0.5, 0.5, 0.5),
    ]
    for given in (rows_of_two_ranks(), rows_of_two_ranks()[::-1]):
        table = timings(event_table(given))
        columns = ["rank", "name", "count", "total_s", "mean_s", "median_s", "min_s", "max_s"]
        assert list(table.columns) == list(TIMING_COLUMNS) == columns
        assert list(table.itertuples(index=False, name=None)) == expected


def chrome_events(rows: list[tuple], path) -> tuple[list[dict], dict]:
    """The spans of the file, and the names that it gives to (process, thread)."""
    to_chrome_trace(event_table(rows), path)
    events = json.loads(path.read_text())["traceEvents"]
    meta = [event for event in events if event["ph"] == "M"]
    processes = {event["pid"]: event["args"]["name"] for event in meta if event["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in meta if e["name"] == "thread_name"}
    names = {ids: (processes[ids[0]], thread) for ids, thread in threads.items()}
    return [event for event in events if event["ph"] == "X"], names


def test_the_chrome_trace_has_a_process_per_rank_a_thread_per_lane_and_microseconds(tmp_path):
    rows = [
        (0, "compute", "forward", 1, None, 5, None, None, 0.5, 0.75),
        (0, "comm", "all_reduce", None, None, None, 2, 64, 0.6, 0.9),
        (1, "compute", "forward", None, None, None, None, None, 0.0, 0.1),
    ]
    events, names = chrome_events(rows, tmp_path / "trace.json")
    assert set(names.values()) == {("rank 0", "compute"), ("rank 0", "comm"), ("rank 1", "compute")}
    found = {(*names[event["pid"], event["tid"]], event["name"]): event for event in events}
    assert len(events) == len(found) == 3
    forward = found["rank 0", "compute", "forward"]
    assert (forward["ts"], forward["dur"]) == (500_000, 250_000)
    assert forward["args"] == {"step": 1, "micro_batch": 5}
    assert found["rank 0", "comm", "all_reduce"]["args"] == {"bucket": 2, "bytes": 64}


def test_spans_on_two_gpus_are_on_one_clock(monkeypatch):
    gpus, recorder = FakeGpus(monkeypatch), spans.Recorder()
    recorder.start("cuda")
    begin = gpus.now_ns
    for number in (0, 1):
        with span("forward", device=f"cuda:{number}", stage=number):
            gpus.sleep(0.002)
    rows = recorder.finish()
    assert [t - begin for row in rows for t in row[7:]] == [0, 2_000_000, 2_000_000, 4_000_000]
    with span("forward"):
        pass
    assert gpus.events.count(0) == 4, "two ticks and a span of the recording, and none of the span after it"


def test_a_barrier_waits_for_each_gpu_in_use_and_then_for_the_ranks(monkeypatch):
    gpus, waited_before = FakeGpus(monkeypatch), []
    monkeypatch.setattr(dist, "barrier", lambda group: waited_before.append((group, list(gpus.waited))))
    trace.barrier()  # and begins to use none of them
    gpus.in_use = {0, 1}
    trace.barrier("group")
    assert waited_before == [(None, []), ("group", [0, 1])]


@pytest.mark.parametrize("where", [{"device": "cpu:1"}, {"lane": "host"}])
def test_work_on_the_cpu_is_timed_by_its_clock_while_the_rank_records_a_gpu(monkeypatch, where):
    gpus, recorder = FakeGpus(monkeypatch), spans.Recorder()
    recorder.start("cuda")
    before = len(gpus.events)
    with span("forward", **where):
        gpus.sleep(0.5)
    assert gpus.events[before:] == []
    ((*_, start, end),) = recorder.finish()
    assert end - start == 500_000_000


def test_a_label_that_is_not_a_whole_number_is_refused_where_it_is_given_and_any_whole_one_is_taken():
    for label in (4 / 3, math.nan, math.inf, np.bool_(True), "3", torch.device("cpu"), 2**63):
        with pytest.raises(TypeError, match=r"span\('x'\): bytes is .*, expected a whole number of 64 bits, or None"):
            span("x", bytes=label)
    with record() as recording:
        for label in (4000.0, np.float32(4000), np.int64(4000), torch.tensor(4000), None):
            with span("x", bytes=label):
                pass
    assert recording.events["bytes"].tolist() == [4000] * 4 + [pd.NA]
