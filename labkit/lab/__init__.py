"""Run the notebooks' experiments, one a file, and show in a cell what the lab's files say.

What a notebook is about stands in its cells; what would distract from it is here.

Experiments:

turns               ways to do a step take turns: the loop of most others, and what is read off it
sorted_shards       what shards of short and of long sentences do to the loss
host_cost           what a call of a collective costs its rank
by_hand             the translation task in processes of the reader's run_processes
overlap             when the gradients of a small GPT-2 are ready, and a step as it is drawn
gradient_sync       a BERT whose gradients are averaged in three ways, and tables of that
ladder              the files of examples/, run and compared
living_bytes        what lives on a rank at every moment of training, by what it is for
sharding            the layers that are sharded, and what a step of them sends
kept_memory         the bytes that autograd keeps for backward

Shown in a cell:

listings            the code of student files, or where to write it
diffs               a file as its diff to another one
terminals           commands that run beside a notebook, as in a terminal
published_results   what others measured, for comparison
"""
