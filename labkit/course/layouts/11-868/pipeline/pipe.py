"""Problems 2.1 and 2.2, from labkit/pipe.py: the clock cycles and the pipeline."""

from labkit.pipe import Pipe
from labkit.pipe import clock_cycles as _clock_cycles

__all__ = ["Pipe", "_clock_cycles"]
