"""Show in a notebook's cell what the lab's files say, and measure what several notebooks need.

turns               ways to do a step take turns: one loop, and what is read off it
listings            the code of student files, or where it is to be written
diffs               a file as its diff to another one
ladder              the files of examples/, run and compared
gradient_sync       the BERT and the batches whose gradients are agreed on in three ways, and tables
kept_memory         the bytes that autograd keeps for backward
published_results   what others measured, beside the reader's own
host_cost           what a call of a collective costs its rank
overlap             a small GPT-2, when its gradients are ready, and a step of it as it is drawn
by_hand             the translation task in processes of the reader's run_processes
sorted_shards       what training on shards of short and of long sentences does to the loss
terminals           commands that run beside a notebook, as in a terminal
living_bytes        what lives on a rank at every moment of training, by what it is for
sharding            the layers that are sharded, and what a step of them sends
"""
