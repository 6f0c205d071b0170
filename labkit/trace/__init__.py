"""Record what did happen: spans timed in any thread of any rank, as rows of the one event table.

spans     time a block of code, and record such spans
gpu_time  read a GPU's events on the CPU's clock; wait for GPUs, and for all ranks and theirs
table     the event table, and the timings of its spans
chrome    the table as a file for Perfetto
traffic   bytes that this process's sockets sent

The simulator (what *should* happen) makes rows of the same table, so everything that reads or draws
one reads the other.
"""

from labkit.trace.chrome import to_chrome_trace
from labkit.trace.gpu_time import barrier, synchronize
from labkit.trace.spans import Recorder, Recording, note_emulated, pause, record, set_step, span
from labkit.trace.table import EVENT_COLUMNS, LANES, TIMING_COLUMNS, Row, event_table, rank_events, timings

__all__ = [
    "EVENT_COLUMNS",
    "LANES",
    "TIMING_COLUMNS",
    "Recorder",
    "Recording",
    "Row",
    "barrier",
    "event_table",
    "note_emulated",
    "pause",
    "rank_events",
    "record",
    "set_step",
    "span",
    "synchronize",
    "timings",
    "to_chrome_trace",
]
