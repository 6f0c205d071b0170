"""Behind launch: how ranks are planned, started, talked to and ended.

The options of a launch come to a LaunchPlan (processes/plan.py), which goes to each rank with its
number. A call is one message out, (CallerEnvironment, GroupNumber) and the pickled function, and
one back, Done or Failed. A launch, one class per step:

    in the notebook  WarmRanks     notebook/warm_ranks.py      pack a call, unpack the answers
                     RankPool      processes/pool.py           all ranks: start, call, listen, end
                     RankHandle    processes/rank_handle.py    one of them: process, answer
                     ServerHandle  processes/server_handle.py  the server: ask it for ranks
    the server                     processes/fork_server.py    has torch imported; forks ranks
    in a rank                      processes/rank_process.py   session, signals, output, stacks
                     Rank          processes/rank.py           run what is sent, and answer

The notebook talks to the server once for each rank: it asks, and has a *control* for signals and
the exit status. Calls and answers go straight between RankHandle and Rank, over a *connection*.

The packages, each of which imports from those below it alone:

notebook    what a reader works with
    warm_ranks, run              calls, and what the reader gets of a run
    magics                       %ranks and %%ranks
    cells, rank_status, idle     cells that live on ranks, and what becomes of a fault in one
    shell                        a rank's IPython shell, in which cells run
processes   from the plan to ranks that answer: the classes above, and
    plan                         the options checked, and what they come to
    diagnosis                    what went wrong in a call: who failed first, where each rank is
    refusals                     what this machine refuses: folders, loopback, its limits
    imported_lab                 has the lab changed on disk since the server imported it
    call_reader, group_sockets   how a cell is ended without its rank: interrupt, shut sockets
    loader_workers               and with it the workers of a data loader
output      what ranks print and display
    rank_output, cell_output     what they print: reading it, showing it
    rank_tabs                    what their cells display
faults      what went wrong, and where
    errors                       what a failed launch raises
    tracebacks                   a rank's own error, with advice where it has none
    stacks                       where each rank was when the time was up
    frames                       whose a frame of a stack is
    rank_watch                   when a rank stands still, and where
    thread_wait, side_threads    what its threads wait for, and what they can end
    work_log                     what it has begun: collectives and messages
    tensor_gaps                  what gloo would misread is refused
    hang, group_state            whether that can meet, and whether all of it has
messages    what the notebook and a rank send each other
    message, connection          what they say; how bytes travel
    caller_environment           what a rank takes over from the notebook for each call
    pickling                     how functions and values travel

Every rank imports this file, so it imports nothing.
"""
