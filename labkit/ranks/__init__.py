"""Behind launch: how ranks are planned, started, talked to and ended.

The way of a launch, one class a step:

    in the notebook  WarmRanks     warm_ranks.py     pack a call, unpack the answers into a Run
                     RankPool      pool.py           all ranks: start, call, listen, end
                     RankHandle    rank_handle.py    one of them: process, output, answer
                     ServerHandle  server_handle.py  the server: keep it running, ask it for ranks
    the server                     fork_server.py    has torch imported; forks ranks
    in a rank                      rank_process.py   session, signals, output, stacks
                     Rank          rank.py           run what is sent, and answer

The notebook talks to the server once for each rank: it asks, and has a *control* for signals and
the exit status. Calls and answers go straight between RankHandle and Rank, over a *connection*.

What these share:

    plan               what is decided before any rank starts
    rank_config        where a rank stands, and what it takes over from the notebook
    imported_lab       has the lab changed on disk since the server imported it
    messages           what the notebook and a rank send each other, and how
    pickling           how functions and values travel
    work_log           what a rank has begun: collectives and messages
    group_state        has all of that met, or would it meet what comes next
    rank_state         where a rank is that stands still
    thread_wait, hang  what it waits for; whether that can come
    frames             which lines of a stack are the reader's own
    run                what the reader gets of a run: values, spans, timings
    cells              cells that live on ranks, and what becomes of a fault in one
    shell              a rank's IPython shell, in which cells run
    call_reader, group_sockets   how a cell is ended without its rank: interrupt, shut sockets
    loader_workers     and with it the workers of a data loader
    magics, rank_tabs  %ranks and %%ranks; how what their ranks display is shown
    errors             what the reader sees of a failure
    rank_output, cell_output   what ranks print: reading it, showing it

Every rank imports this file, so it imports nothing.
"""
