"""Serve a course around the lab: what instructors run.

student         the student edition: this repository without the solutions
report          an assignment's report, from the reader's own notebook
notebook_html   a notebook as one page, in which nothing runs
notebooks       notebooks as they are committed: executed, in normal form, held to a contract
chromium        a page printed to PDF
doctor          whether this machine is ready
"""
