"""Explore schedules: change them, compare two on one time axis, and run them on real ranks.

state           what is shown as a line of text: one table of fields
values          from a state to schedules and their times
measure         a schedule run on real ranks, compared with its ideal
pipeline_rank   what each of these ranks does
tables          metrics side by side, and where time went, in print
orders          schedules as the page reads them; those of a file
widget          all of it in a notebook: schedule_explorer
"""
