"""Show in a notebook's cell what the lab's files say.

listings            the code of student files, or where it is to be written
diffs               a file as its diff to another one
ladder              the files of examples/, run and compared
stage_measurements  what single modules, cuts and recomputation cost in ranks
published_results   what others measured, beside the reader's own
"""
