"""Behind launch: how ranks are planned, started, talked to and ended.

plan           what is decided before any of them starts
pool           the notebook's side: a set of ranks
rank_handle    one of them, as the notebook sees it
servers        the notebook's side of the processes that ranks come from
fork_server    those processes
rank_process   becoming a rank: session, signals, descriptors
rank           being one: run what is sent
rank_config    where a rank stands, and what it takes over from the notebook
messages       what the notebook and a rank send each other, and how
pickling       how functions and values travel
work_log       what a rank has begun: collectives and messages
rank_state     a rank that stands still; thread_wait: what it waits for; hang: whether that can come
frames         which lines of a stack are the reader's own
errors, cell_output   what the reader sees

Every rank imports this file, so it imports nothing.
"""
