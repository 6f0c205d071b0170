"""Serve a course around the lab: what instructors run.

student         the student edition: this repository without the solutions
report          an assignment's report, from the reader's own notebook
notebook_html   a notebook as one page, in which nothing runs
site            static pages: explorers play, notebooks are read (site_explorers, formulas)
notebooks       notebooks as they are committed: executed, in normal form, held to a contract
doctor          whether this machine is ready
submission      what a student hands in, packed
archive         that as a zip file: written, and read without trust
downloads       what a class handed in, as an LMS downloads it
assignments     what the archives of two assignments have besides
judge           student files judged in a copy of the lab, by a process of its own
grading         one archive, or a folder of them, graded
autograder      the same on Gradescope
grades          what was found of an archive
grade_tables    grades as tables and pages, and a summary of the class
"""
