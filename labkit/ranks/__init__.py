"""Behind launch: how ranks are planned, started, talked to and ended.

plan           what is decided before any of them starts
pool, member   the notebook's side: a set of ranks, and one of them
servers        the notebook's side of the processes that ranks come from
fork_server    those processes
rank_process   becoming a rank: session, signals, descriptors
rank           being one: run what is sent
rank_config    where a rank stands, and what it takes over from the notebook
channel        the connection, and protocol: the messages on it
pickling       how functions and values travel
states         what the system says of processes that do not answer
errors, tracebacks, cell_output   what the reader sees

Every rank imports this file, so it imports nothing.
"""
