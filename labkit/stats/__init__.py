"""Compare ways by repeats that took turns.

interleaved_repeats  the seconds of each repeat, a column per way
repeated_times       the table of these seconds, which compares two ways
comparison           a median and its interval; two ways in a sentence, worded by the data
conclusions          a sentence of notebooks/conclusions.toml, chosen by the run
"""

from labkit.stats.comparison import Interval, Verdict, interval, verdict
from labkit.stats.conclusions import conclusion
from labkit.stats.interleaved_repeats import repeats

__all__ = ["Interval", "Verdict", "conclusion", "interval", "repeats", "verdict"]
