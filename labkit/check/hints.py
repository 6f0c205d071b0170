"""Hints for each task, three of them, to be asked for: check("dp.1", hint=1).

The first points at the idea, the second at the shape of the solution, the third at the order of
steps and at what most people get wrong. They are words, never code.
"""

from __future__ import annotations

HINTS = {
    # --- data parallelism -----------------------------------------------------------------------
    "dp.1": (
        "A size times the number of samples is seldom a whole number. If every shard rounds by itself, how many "
        "samples do three equal shards of 10 have together?",
        "Think of cuts instead of lengths: a shard goes from one cut to the next, so neighbours share a cut. Shuffle "
        "the sample numbers once, with a generator of your own, and take what lies between two cuts.",
        "Most people round each length, and lose a sample or give one away twice. Round the place where a shard ends: "
        "the sum of all sizes up to it, times the number of samples. The loader's batch size is that of all ranks "
        "together, so a rank takes its share of it, rounded down.",
    ),
    "dp.2": (
        "A process group exists once every rank has come to the same place. Who has to know the place beforehand, and "
        "who waits for whom?",
        "setup is two steps: first the store, then the group through that store. In run_processes, start all processes "
        "without joining them, and keep what you get back: it can be asked whether all have ended, and it raises what "
        "a rank has raised.",
        "Asked once, join may come back because one process has ended while others go on, so ask until it says that "
        "all have. You may be interrupted while you wait, so what must happen in any case belongs into a finally. "
        "There, kill each of the context's processes, and then join it, so that it is gone when you return.",
    ),
    "dp.3": (
        "Rank 0 alone sees all gradients, so it alone can average. What does it need room for, and what do the others "
        "give in place of that?",
        "For each parameter: gather, average, scatter. The list of tensors, one for each rank, exists on rank 0; the "
        "others give None. What a rank gets back from scatter is its new gradient.",
        "A list that has one tensor several times has room for one gradient, so make a tensor for each rank. Gather "
        "and scatter want contiguous memory, and a contiguous copy is no longer the gradient, so copy the mean back "
        "into that. Where the gradient is None, all ranks leave the parameter out.",
    ),
    "dp.4": (
        "If every rank's loss is a mean over its shard, then the gradient of the whole batch is the mean of the ranks' "
        "gradients. What does an all_reduce give?",
        "Go through the parameters. Each that has a gradient takes part in one all_reduce, which changes it in place to "
        "the sum; from there to the mean is one more step, with the world size.",
        "A parameter without a gradient stays without one: a zero in its place would let an optimizer with momentum "
        "move the parameter. Change the gradient, and not the parameter, and change it in place, because others hold "
        "that very tensor.",
    ),
    "dp.5": (
        "Draw three ranks in a ring, each with three chunks. If rank r begins by sending chunk r, which chunk arrives "
        "at it, and which one does it pass on next?",
        "There are two loops, each of one step fewer than there are ranks. In the first, a rank adds what arrives to "
        "its own chunk and passes that on; at the end it has the whole sum of chunk r + 1. In the second, finished "
        "chunks go round, and what arrives replaces what was there.",
        "In step s of the first half rank r sends chunk r − s and receives chunk r − s − 1; in the second half both are "
        "one higher, all modulo the number of ranks. In the first half what arrives needs room of its own, as it has to "
        "be added. Chunks are views of a contiguous tensor; where the given one is not "
        "contiguous, that is a copy, and the result has to go back.",
    ),
    "dp.6": (
        "Which gradient is ready first in a backward pass, that of the first layer or that of the last? And when a "
        "parameter does not fit any more, does the rule leave it out?",
        "Go through the parameter numbers from the last to the first, with one open bucket. Keep in mind how much room "
        "that has left; a parameter goes in whole, even if the room ends up below zero.",
        "Ask whether the open bucket is full before you put a parameter in, and not after: then a bucket is opened only "
        "when something goes into it, and none stays empty. A bucket that is exactly full is closed. The capacity for "
        "the first bucket is for that one alone, and it may be missing.",
    ),
    "dp.7": (
        "Suppose bucket 1 is full on rank 0 while bucket 0 is full on rank 1. If each sends what it has, what is added "
        "up?",
        "A single gradient can free several buckets that have waited behind it, so it takes a loop and not one question. "
        "Collect before you send, and wait only at the end, or backward stands still.",
        "A gradient that is ready is collected, and is not missing any more. Then look at the bucket whose turn it is: "
        "as long as nothing of it is missing, send it and go on to the next. In the other place, collect what is still "
        "missing in the buckets that are left, send those, wait for all, and leave each sum where it is, as collect has "
        "divided already.",
    ),
    # --- pipeline parallelism -------------------------------------------------------------------
    "pipe.1": (
        "Read the devices of a model from the front to the back, such as 0, 0, 1, 1, 0. Where does a partition begin, "
        "and how many are there?",
        "The two lists grow together. For each module decide first whether a new partition begins with it; then, in any "
        "case, put the module into the last partition, by add_module and under the name that it has.",
        "Compare with the device of the last partition alone: a device that comes a second time is a new partition. A "
        "module that names no device never begins one, so ask that first. An nn.Sequential that is made of a list of "
        "modules numbers them anew, and their names are lost.",
    ),
    "pipe.2": (
        "Look at one column of the table. What do micro-batch and partition add up to in each of its pairs?",
        "They add up to the number of the clock. So within a clock the partition decides which micro-batch it would be: "
        "go through the partitions in order.",
        "Not every partition has something to do: at first the late ones are idle, at the end the early ones. Leave out "
        "a pair whose micro-batch would be below 0, or would not exist any more. The last micro-batch has to get "
        "through all partitions, so there are more clocks than micro-batches.",
    ),
    "pipe.3": (
        "If you hand a task to a worker and take its result before you hand out the next one, how many workers are busy "
        "at a time?",
        "compute has three parts: hand out a task for each pair, wait for all tasks, take all results. A worker's put "
        "comes back at once, a task's wait does not. forward is a list of micro-batches that compute changes clock by "
        "clock, and one tensor made of it.",
        "It takes three loops. A result that raises must not leave others at work on the batches, so wait for every "
        "task before you ask the first for its result, and ask in the order of the schedule. run_stage is told its "
        "numbers by name, as stage and micro_batch, and it is partition j and device j, but batch i.",
    ),
    "pipe.4": (
        "GPT-2 goes through gpt2.transformer.h in a loop. If one call of the Pipe runs all blocks, how often may that "
        "loop turn?",
        "PipedBlocks is what the loop turns over: once. It is made of a Pipe, which is made of the blocks, one after "
        "the other in an nn.Sequential; they know their devices, so the Pipe knows where to cut.",
        "From the inside out it is the blocks, the nn.Sequential, the Pipe with its split_size, PipedBlocks; and that "
        "takes the place of the blocks in the model. Most people put it into a list, as the blocks were in one: then "
        "the parameters have other names, and what was saved cannot be loaded.",
    ),
    "pipe.5": (
        "Take a rank in the middle of a 1F1B schedule, and one forward and one backward on it. What does each need, who "
        "has it, and who waits for what comes of it?",
        "Every op is the same three steps: get the input, call the stage's method for this kind of op, send what came "
        "out. A forward gets an activation and gives one; a backward gets a gradient and gives one. I is to messages "
        "what B is, and W has no messages at all.",
        "The ends differ: stage 0 takes its input from the micro-batches and sends no gradient; the last stage's forward "
        "gives the loss, which is not sent, and its backward receives nothing. Ask that of the op's stage and not of the "
        "rank, which may have several. Send at once, before the next op, and send a gradient also where it is None.",
    ),
}
