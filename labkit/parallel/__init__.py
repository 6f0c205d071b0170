"""Given code under the students' dp.py, shard.py and pipe.py.

A package stands under one of these files, and imports none of the other two packages.

dp          under labkit/dp.py
    bucket                       BucketedDataParallel: buckets of gradients, and hooks that send
shard       under labkit/shard.py
    unit, unit_hooks             ShardedModel: units of layers, and when each is needed
    piece                        a parameter of which this rank has a piece, and its uses
    sharded_state                its state, as torch.distributed.checkpoint saves and loads it
    optimizer_share              ShardedOptimizer: how a parameter travels, and what is refused
    matrix_share                 one matrix on several ranks, by columns or by rows
pipe        under labkit/pipe.py
    batch, sequence_layers       what may be cut into micro-batches, and how
    side_effects                 a model or a loss run once more, of which no trace is left
    gpt2                         a GPT-2 on devices, and one in stages
  of Pipe, whose stages are threads:
    placement                    split_module: on which device each module is to run
    worker, task_waits           threads that take tasks from a queue; how long tasks wait there
    worker_stage                 a stage's forward and backward as one node of autograd's graph
    streams                      tensors that go from one device, or stream, to another
  of ScheduledPipeline, whose stages are processes:
    stage_assignment, agreement  which rank has which stages; all ranks go on, or all raise
    scheduled_stage, row_mean    a stage, its micro-batches and their loss, a mean over rows
    split_backward               its backward pass, whole or in two
    p2p                          messages between ranks, sent while they compute

Beside the packages:

devices                          devices of a process, and of what a group sends
guard                            what was wrapped is what runs; no step comes before the mean
same_model                       ranks start with the model of rank 0
emulated                         modules that sleep instead of computing, for the notebooks
"""
