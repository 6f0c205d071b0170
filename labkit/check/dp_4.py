"""dp.4: average_gradients averages gradients by one all_reduce a parameter."""

from labkit.check.gradients import Case, averaging

PLAIN = Case("average_gradients", ("all_reduce",), "sum with all_reduce, divide by get_world_size()")
TASK = averaging(PLAIN)
