"""Explore schedules, buckets and rings in a notebook: pictures to change, to step through, to run.

scene     a picture as data: panels of bars in rows
"""
