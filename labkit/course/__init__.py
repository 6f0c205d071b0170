"""Serve a course around the lab.

student     the student edition: this repository without the solutions
report      an assignment's report, from the reader's own notebook
notebooks   notebooks as they are committed: executed, in normal form, held to a contract
kernels     kernels that no other user of the machine can reach
listings    the code of student files in a notebook, or where it is to be written
doctor      whether this machine is ready
diffs       a file as its diff to another one
"""
