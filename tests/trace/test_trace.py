"""labkit.trace: spans become rows of the event table, none lost, none invented."""

import json
import statistics
import threading
import time
from collections import defaultdict

import pandas as pd
import pytest
from fake_gpus import FakeGpus

from labkit.base.formats import MeasuredTable
from labkit.simulate import steps_of
from labkit.trace import (
    EVENT_COLUMNS,
    TIMING_COLUMNS,
    event_table,
    gpu_time,
    rank_events,
    record,
    span,
    spans,
    timings,
    to_chrome_trace,
)


def test_a_span_is_one_row_with_its_labels_and_its_time():
    with record() as recording:
        before = time.perf_counter()
        with span("all_reduce", lane="comm", step=4, stage=1, micro_batch=2, bucket=3, bytes=1024):
            time.sleep(0.02)
        outside = time.perf_counter() - before
    assert tuple(recording.events.columns) == EVENT_COLUMNS
    row = recording.events.iloc[0].to_dict()
    duration = row.pop("end_s") - row.pop("start_s")
    labels = {"step": 4, "stage": 1, "micro_batch": 2, "bucket": 3, "bytes": 1024}
    assert row == {"rank": 0, "lane": "comm", "name": "all_reduce", **labels}
    assert 0.02 <= duration <= outside


def test_labels_that_were_not_given_are_missing_and_those_given_stay_integers():
    with record() as recording, span("forward", micro_batch=0):
        pass
    events = recording.events
    assert events["micro_batch"].tolist() == [0] and str(events["micro_batch"].dtype) == "Int64"
    assert events[["step", "stage", "bucket", "bytes"]].isna().all(axis=None)


def test_a_nested_span_lies_inside_its_outer_one_and_both_are_kept():
    with record() as recording, span("outer"), span("inner"):
        pass
    outer, inner = recording.events.set_index("name").loc[["outer", "inner"]].itertuples()
    assert outer.start_s <= inner.start_s <= inner.end_s <= outer.end_s


def test_a_span_around_a_block_that_raises_is_recorded_and_raises_on():
    with record() as recording, pytest.raises(ZeroDivisionError), span("broken"):
        raise ZeroDivisionError
    assert list(recording.events["name"]) == ["broken"]


def test_events_are_there_even_if_the_recorded_block_raised():
    with pytest.raises(KeyError), record() as recording:
        with span("first"):
            pass
        raise KeyError
    assert list(recording.events["name"]) == ["first"]


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


def test_outside_a_recording_a_span_leaves_nothing_behind():
    with span("before"):
        pass
    with record() as recording:
        pass
    with span("after"):
        pass
    assert recording.events.empty
    assert spans._recorders == ()


def test_a_span_that_began_before_the_recording_is_not_in_it():
    early = span("early")
    early.__enter__()
    with record() as recording:
        early.__exit__(None, None, None)
    assert recording.events.empty


def test_a_span_may_end_in_another_thread_than_it_began_in():
    with record() as recording:
        timing = span("all_reduce", lane="comm", bucket=1)
        began = time.perf_counter()
        assert timing.__enter__() is timing  # what "with span(...) as timing" gives
        thread = threading.Thread(target=lambda: (time.sleep(0.02), timing.end()))
        thread.start()
        with span("backward"):
            pass
        thread.join()
        until_joined = time.perf_counter() - began
    events = recording.events.set_index("name")
    assert sorted(events.index) == ["all_reduce", "backward"]
    sent = events.loc["all_reduce"]
    assert (sent["lane"], sent["bucket"]) == ("comm", 1)
    assert 0.02 <= sent["end_s"] - sent["start_s"] <= until_joined + 1e-6
    assert sent["start_s"] <= events.loc["backward", "start_s"]


def test_a_span_that_is_never_ended_is_not_in_the_recording_and_one_that_never_began_cannot_end():
    with record() as recording:
        span("left open").__enter__()
        span("never begun").end()
    assert recording.events.empty


def test_a_span_that_ends_after_its_recording_leaves_nothing_behind():
    with record() as recording:
        timing = span("too late").__enter__()
    timing.end()
    assert recording.events.empty


def test_an_inner_recording_has_its_own_spans_and_the_outer_one_has_all():
    with record() as outer:
        with span("a"):
            pass
        with record() as inner, span("b"):
            pass
        with span("c"):
            pass
    assert list(inner.events["name"]) == ["b"]
    assert list(outer.events["name"]) == ["a", "b", "c"]


def test_the_clock_starts_with_the_recording():
    with record() as recording:
        time.sleep(0.03)
        with span("late"):
            pass
    assert 0.03 <= recording.events["start_s"].item() < 10


def test_events_come_in_the_order_in_which_they_started():
    with record() as recording, span("outer"):
        for _ in range(3):
            with span("inner"):
                pass
    assert list(recording.events["name"]) == ["outer", "inner", "inner", "inner"]
    assert recording.events["start_s"].is_monotonic_increasing


def test_the_rank_of_a_span_is_that_of_the_process(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    with record() as recording, span("forward"):
        pass
    assert recording.events["rank"].tolist() == [3]


def test_an_unknown_lane_is_refused_by_name():
    with pytest.raises(ValueError, match=r"lane is 'gpu', expected one of compute, comm, host"):
        span("forward", lane="gpu")


def test_an_unknown_label_is_refused_by_name():
    with pytest.raises(TypeError, match="microbatch"):
        span("forward", microbatch=1)


def test_events_cannot_be_asked_for_before_the_block_is_over():
    with record() as recording, pytest.raises(RuntimeError, match="once the with block is over"):
        _ = recording.events


def test_measured_events_print_as_measurements_and_simulated_ones_do_not():
    rows = [(0, "compute", "forward", None, None, None, None, None, 0.0, 1.0)]
    assert isinstance(event_table(rows, measured=True), MeasuredTable)
    assert type(event_table(rows)) is pd.DataFrame


@pytest.mark.parametrize("measured", [True, False])
def test_a_table_keeps_what_was_emulated_and_its_timings_do_too(measured):
    events = event_table(rows_of_two_ranks(), measured=measured, emulated="emulated link: slow")
    assert events.attrs == timings(events).attrs == {"emulated": "emulated link: slow"}
    assert event_table(rows_of_two_ranks(), measured=measured).attrs == {}


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


def timings_in_plain_python(rows: list[tuple]) -> list[tuple]:
    durations = defaultdict(list)
    for row in sorted(rows, key=lambda row: row[8]):
        durations[row[0], row[2]].append(row[9] - row[8])
    summary = []
    for (rank, name), times in durations.items():
        middle = statistics.fmean(times), statistics.median(times)
        summary.append((rank, name, len(times), sum(times), *middle, min(times), max(times)))
    return sorted(summary, key=lambda row: row[0])  # sort is stable: names keep the order in which they first started


def test_timings_are_those_of_plain_python():
    rows = rows_of_two_ranks()
    table = timings(event_table(rows))
    assert list(table.columns) == ["rank", "name", "count", "total_s", "mean_s", "median_s", "min_s", "max_s"]
    assert list(table.itertuples(index=False, name=None)) == timings_in_plain_python(rows)
    assert table["total_s"].sum() == 10.5


def test_timings_of_a_recording_without_spans_are_an_empty_table():
    with record() as recording:
        pass
    assert recording.timings.empty and list(recording.timings.columns) == list(TIMING_COLUMNS)


def test_timings_of_measured_events_are_a_measured_table():
    assert isinstance(timings(event_table(rows_of_two_ranks(), measured=True)), MeasuredTable)


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


def test_spans_of_one_thread_of_the_chrome_trace_are_nested_as_the_format_wants(tmp_path):
    label = (None,) * 5
    times = [
        (0, 10),
        (1, 4),
        (2, 3),
        (3, 6),
        (5, 8),
        (9, 12),
        (10, 11),
        (12, 13),
    ]  # (3, 6) crosses (1, 4), (9, 12) crosses (0, 10)
    events, names = chrome_events([(0, "compute", f"{a}-{b}", *label, a, b) for a, b in times], tmp_path / "trace.json")
    assert sorted(event["name"] for event in events) == sorted(f"{a}-{b}" for a, b in times)
    assert len(set(names.values())) == len(names) > 1
    for one in events:
        for other in events:
            if one["tid"] == other["tid"]:
                crossing = one["ts"] < other["ts"] < one["ts"] + one["dur"] < other["ts"] + other["dur"]
                assert not crossing, (one, other)


def test_nested_spans_of_a_lane_share_a_thread_of_the_chrome_trace_in_whatever_order_they_come(tmp_path):
    rows = [
        (0, "host", name, *(None,) * 5, 0.0, end) for name, end in (("inner", 1.0), ("outer", 5.0), ("middle", 2.0))
    ]
    events, names = chrome_events(rows, tmp_path / "trace.json")
    assert list(names.values()) == [("rank 0", "host")]
    assert [event["name"] for event in events] == ["outer", "middle", "inner"]  # viewers nest in the order of the file


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


def test_ops_stay_in_their_host_span_though_the_gpus_clock_is_100_ppm_slow(monkeypatch):
    gpus, recorder = FakeGpus(monkeypatch, slow=1e-4), spans.Recorder()
    recorder.start("cuda")
    for _ in range(3):
        gpus.sleep(1.0)
        with span("step", "host"):
            for i in range(2):
                gpus.sleep(20e-6)
                with span("forward", stage=0, micro_batch=i):
                    gpus.sleep(0.01)
    events = event_table(rank_events(recorder.finish(), 0, 0))
    assert [len(step) for step in steps_of(events, within="step")] == [2, 2, 2]


def test_a_short_recording_leaves_the_times_of_the_gpu_as_they_are(monkeypatch):
    """How late the CPU hears of an event is then more than its clock differs."""
    gpus, recorder = FakeGpus(monkeypatch), spans.Recorder()
    recorder.start("cuda")
    with span("forward"):
        gpus.sleep(1e-3)
    monkeypatch.setattr(gpu_time, "_clock", lambda: gpus.now_ns + 100_000)
    ((*_, start, end),) = recorder.finish()
    assert end - start == pytest.approx(1e6, rel=2e-3)


def test_a_thread_of_a_rank_is_timed_on_the_ranks_gpu_and_not_on_its_own_current_one(monkeypatch):
    gpus, recorder = FakeGpus(monkeypatch), spans.Recorder()
    with gpus.device(1):
        recorder.start("cuda")
        before = len(gpus.events)
        thread = threading.Thread(target=lambda: span("all_reduce", "comm").__enter__().end())
        thread.start()
        thread.join()
        assert gpus.events[before:] == [1, 1]
        recorder.finish()


@pytest.mark.parametrize("device", ["cpu", "cpu:1"])
def test_work_on_the_cpu_is_timed_by_its_clock_while_the_rank_records_a_gpu(monkeypatch, device):
    gpus, recorder = FakeGpus(monkeypatch), spans.Recorder()
    recorder.start("cuda")
    before = len(gpus.events)
    with span("forward", device=device):
        gpus.sleep(0.5)
    assert gpus.events[before:] == []
    ((*_, start, end),) = recorder.finish()
    assert end - start == 500_000_000
