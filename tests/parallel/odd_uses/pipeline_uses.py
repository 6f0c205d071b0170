"""Odd stages, losses and steps of a ScheduledPipeline."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from odd_bed import SCHEDULED, batch, mse, tokens, use
from torch import nn
from torch.utils.checkpoint import checkpoint

from labkit.schedule import forward_only, interleaved, one_f_one_b, zero_bubble_h1, zero_bubble_v


class Do(nn.Module):
    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.function(self, x)


def two(last=None, first=None):
    return [first or nn.Sequential(nn.Linear(4, 5), nn.Tanh()), last or nn.Linear(5, 2)]


def train(way, stages, loss=mse, schedule=None, data=batch, n=3, each=None, optimizer=None, after=None):
    pipeline = way.pipeline(stages, schedule or one_f_one_b(2, 4), loss)
    steps(way, pipeline, way.own_optimizer(optimizer), data, n, each, after)
    return pipeline


def steps(way, pipeline, optimizer, data=batch, n=3, each=None, after=None):
    for step in range(n):
        if each:
            each(step)
        optimizer.zero_grad()
        way.count_last(pipeline.step(*data(step)))
        if after:
            after(step)
        way.step(optimizer)


@use(SCHEDULED)
def rows_that_micro_batches_do_not_divide(way):
    train(way, two(), data=lambda step: tuple(t[:7] for t in batch(step)))


@use(SCHEDULED, ScheduledPipeline="documented: A weight that stages on two ranks share is two weights")
def a_weight_tied_between_two_ranks(way):
    embedding, head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    head.weight = embedding.weight
    train(way, [nn.Sequential(embedding, Do(lambda m, x: x.mean(1).tanh())), head], F.cross_entropy, data=tokens)


@use(SCHEDULED)
def a_weight_tied_between_two_stages_of_a_rank(way):
    first, middle, shared = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    shared.weight = first.weight
    train(
        way,
        [first, nn.Sequential(nn.Tanh(), middle), nn.Sequential(nn.Tanh(), shared), nn.Linear(4, 2)],
        schedule=interleaved(2, 4, 2),
    )


@use(SCHEDULED, ScheduledPipeline="refused: expected a mean over rows")
def a_sum_as_loss(way):
    train(way, two(), nn.MSELoss(reduction="sum"))


@use(SCHEDULED, ScheduledPipeline="refused: rank 1 cannot take part in the pipeline, so no")
def a_mean_over_tokens_with_padding(way):
    def padded(step):
        ids = tokens(step)[0]
        target = ids.roll(1, 1)
        for row in range(8):
            target[row, 1 + row // 2 :] = -100
        return ids, target

    loss = lambda output, target: F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)  # noqa: E731
    train(way, [nn.Embedding(9, 4), nn.Linear(4, 9)], loss, data=padded)


@use(SCHEDULED)
def a_sum_over_tokens_divided_by_those_of_the_batch(way):
    def padded(step):
        ids = tokens(step)[0]
        target = ids.roll(1, 1)
        for row in range(8):
            target[row, 1 + row // 2 :] = -100
        return ids, target

    stages = [nn.Embedding(9, 4), nn.Linear(4, 9)]
    count = (padded(0)[1] != -100).sum()

    def loss(output, target):  # times the rows' share, which the pipeline weighs by
        return (
            F.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum", ignore_index=-100)
            / count
            * 8
            / len(output)
        )

    train(way, stages, loss, data=padded)


@use(SCHEDULED, ScheduledPipeline="refused: rank 1 cannot take part in the pipeline, so no")
def classes_with_weights(way):
    weights = torch.arange(1.0, 10.0)
    train(
        way,
        [nn.Embedding(9, 4), Do(lambda m, x: m.last(x.mean(1)), last=nn.Linear(4, 9))],
        nn.CrossEntropyLoss(weight=weights),
        data=tokens,
    )


@use(SCHEDULED)
def label_smoothing(way):
    train(
        way,
        [nn.Embedding(9, 4), Do(lambda m, x: m.last(x.mean(1)), last=nn.Linear(4, 9))],
        nn.CrossEntropyLoss(label_smoothing=0.1),
        data=tokens,
    )


@use(SCHEDULED, ScheduledPipeline="refused: rank 1 cannot take part in the pipeline, so no")
def a_contrastive_loss_within_the_batch(way):
    train(way, two(), lambda o, t: F.cross_entropy(o @ t.T, torch.arange(len(o))))


@use(SCHEDULED, ScheduledPipeline="documented: what an even first batch hides")
def an_even_first_batch_and_uneven_later_ones(way):
    def padded(step):
        ids = tokens(step)[0]
        target = ids.roll(1, 1)
        for row in range(8):
            target[row, (1 + row // 2 if step else 3) :] = -100
        return ids, target

    loss = lambda output, target: F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)  # noqa: E731
    train(way, [nn.Embedding(9, 4), nn.Linear(4, 9)], loss, data=padded)


@use(SCHEDULED)
def a_loss_module_with_parameters(way):
    class Learned(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.5))

        def forward(self, output, target):
            return mse(output * self.scale, target)

    loss = Learned()
    train(way, two(), loss)
    way.note("gradient of the loss's scale", loss.scale.grad if way.has_last else None, "owned")


@use(SCHEDULED)
def an_auxiliary_loss_that_a_stage_keeps(way):
    """Mixture of experts: a stage keeps a loss of its own, which the loss function adds."""
    kept = {}

    def keep(m, x):
        kept["aux"] = x.square().mean()
        return m.last(x)

    train(way, two(Do(keep, last=nn.Linear(5, 2))), lambda output, target: mse(output, target) + kept["aux"])


@use(
    SCHEDULED,
    ScheduledPipeline="documented: what :class:`Pipe` says of layers whose rows depend on each other holds here, too",
)
def batch_norm_of_micro_batches(way):
    train(way, two(first=nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))))


@use(
    SCHEDULED,
    ScheduledPipeline="documented: what :class:`Pipe` says of layers whose rows depend on each other holds here, too",
)
def rows_of_a_stage_that_depend_on_each_other(way):
    train(way, two(Do(lambda m, x: m.last(x - x.mean(0)), last=nn.Linear(5, 2))))


@use(SCHEDULED)
def a_checkpoint_in_a_stage_with_i_and_w(way):
    train(
        way,
        two(Do(lambda m, x: checkpoint(m.last, x, use_reentrant=False), last=nn.Linear(5, 2))),
        schedule=zero_bubble_h1(2, 4),
    )


@use(SCHEDULED, ScheduledPipeline="documented: torch.utils.checkpoint needs ``use_reentrant=False``")
def a_reentrant_checkpoint_in_a_stage_with_i_and_w(way):
    train(
        way,
        two(Do(lambda m, x: checkpoint(m.last, x, use_reentrant=True), last=nn.Linear(5, 2))),
        schedule=zero_bubble_h1(2, 4),
    )


@use(SCHEDULED)
def a_module_backward_hook_with_i_and_w(way):
    stages = two()
    stages[1].register_full_backward_hook(lambda m, grads, outs: (grads[0] * 0.5,))
    train(way, stages, schedule=zero_bubble_h1(2, 4))


@use(SCHEDULED, ScheduledPipeline="documented: Hooks of a parameter run for each micro-batch")
def a_parameter_hook_that_clamps(way):
    stages = two()
    stages[0][0].weight.register_hook(lambda gradient: gradient.clamp(-0.005, 0.005))
    train(way, stages)


@use(SCHEDULED, ScheduledPipeline="documented: Hooks of a parameter run for each micro-batch")
def an_optimizer_step_in_backward_of_a_stage(way):
    stages = two()
    for p in (p for s in stages for p in s.parameters()):
        optimizer = torch.optim.SGD([p], lr=0.1)

        def hook(p, optimizer=optimizer):
            optimizer.step()
            p.grad = None

        p.register_post_accumulate_grad_hook(hook)
    pipeline = way.pipeline(stages, one_f_one_b(2, 4), mse)
    for step in range(2):
        pipeline.step(*batch(step))


@use(SCHEDULED, ScheduledPipeline="refused: stage 0 gives (2, 5) torch.float64 without")
def a_stage_frozen_and_thawed_between_steps(way):
    stages = two()
    train(way, stages, each=lambda step: stages[0].requires_grad_(step != 1))


@use(SCHEDULED)
def all_but_a_bias_frozen(way):
    stages = two()
    for s in stages:
        s.requires_grad_(False)
    stages[1].bias.requires_grad_(True)
    train(way, stages)


@use(SCHEDULED, ScheduledPipeline="documented: What looks at all gradients")
def clipped_by_each_rank(way):
    train(way, two(), after=lambda step: nn.utils.clip_grad_norm_([p for m in way.own for p in m.parameters()], 0.05))


@use(SCHEDULED)
def clipped_by_the_norm_of_all_ranks(way):
    """By hand: the squares are added up over the ranks first."""

    def clip(step):
        own = [p for m in way.own for p in m.parameters()]
        square = nn.utils.get_total_norm([p.grad for p in own]).square()
        if way.name != "plain":
            dist.all_reduce(square)
        nn.utils.clip_grads_with_norm_(own, 0.05, square.sqrt())

    train(way, two(), after=clip)


@use(SCHEDULED, ScheduledPipeline="documented: What looks at all gradients")
def a_grad_scaler_on_each_rank(way):
    pipeline = way.pipeline([m.float() for m in two()], one_f_one_b(2, 4), lambda o, t: mse(o, t) * scaler.get_scale())
    optimizer = way.own_optimizer((torch.optim.SGD, {"lr": 0.1}))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(3):
        optimizer.zero_grad()
        x, y = batch(step)
        scaler.scale(torch.zeros(()))
        pipeline.step(x.float(), y.float())
        if step == 1:
            for p in way.own[-1].parameters():
                if way.has_last:
                    p.grad.view(-1)[0] = float("inf")  # overflows on the last rank alone
        scaler.step(optimizer)
        scaler.update()
        way.note("scale", scaler.get_scale())


@use(SCHEDULED, ScheduledPipeline="refused: x has 7 rows, and the batch of the first step")
def another_number_of_rows_in_the_last_batch(way):
    train(way, two(), data=lambda step: tuple(t[: 8 - step] for t in batch(step)))


@use(SCHEDULED)
def a_refused_first_step_and_then_a_good_one(way):
    pipeline = way.pipeline(two(), one_f_one_b(2, 4), mse)
    optimizer = way.own_optimizer()
    if way.name != "plain":
        x = batch()[0].requires_grad_()
        with contextlib.suppress(ValueError):
            pipeline.step(x[:5], batch()[1][:5])
    steps(way, pipeline, optimizer, n=2)


@use(SCHEDULED, ScheduledPipeline="refused: stage 0 gives (2, 4, 4) torch.float64 for")
def longer_sequences_in_later_steps(way):
    train(
        way,
        [nn.Embedding(9, 4), Do(lambda m, x: m.last(x.mean(1)), last=nn.Linear(4, 9))],
        F.cross_entropy,
        data=lambda s: (tokens(s)[0][:, : 3 + s], tokens(s)[1]),
    )


@use(SCHEDULED)
def activations_of_another_shape_in_each_micro_batch(way):
    """Padding is cut off by micro-batch, as collate functions do."""

    def cut(m, ids):
        return m.embedding(ids[:, : max(1, int((ids != 0).sum(1).max()))])

    def padded(step):
        ids, target = tokens(step)
        ids = ids.clamp(min=1)
        for row in range(8):
            ids[row, 1 + row // 2 :] = 0
        return ids, target

    stages = [
        Do(cut, embedding=nn.Embedding(9, 4, padding_idx=0)),
        Do(lambda m, x: m.last(x.sum(1)), last=nn.Linear(4, 9)),
    ]
    train(way, stages, F.cross_entropy, data=padded)


@use(SCHEDULED, ScheduledPipeline="refused: stage 0 returned a tuple for micro-batch 0,")
def a_tuple_between_two_ranks(way):
    train(
        way,
        two(
            Do(lambda m, x: m.last(x[0]), last=nn.Linear(5, 2)), Do(lambda m, x: (m.first(x), x), first=nn.Linear(4, 5))
        ),
    )


@use(SCHEDULED, ScheduledPipeline="refused: x requires grad, and a pipeline does not give")
def an_input_that_requires_grad(way):
    pipeline = way.pipeline(two(), one_f_one_b(2, 4), mse)
    x, y = batch()
    way.count_last(pipeline.step(x.requires_grad_(), y))


@use(SCHEDULED, tolerance=0.05)
def autocast_around_a_step(way):
    pipeline = way.pipeline([m.float() for m in two()], one_f_one_b(2, 4), lambda o, t: mse(o.float(), t))
    optimizer = way.own_optimizer((torch.optim.SGD, {"lr": 0.1}))
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            way.count_last(pipeline.step(*(t.float() for t in batch(step))))
        way.step(optimizer)


@use(SCHEDULED)
def evaluated_by_a_second_pipeline_between_steps(way):
    stages = two()
    pipeline = way.pipeline(stages, one_f_one_b(2, 4), mse)
    other = way.pipeline(stages, forward_only(2, 2), mse, again=True)
    optimizer = way.own_optimizer()
    for _step in range(3):
        steps(way, pipeline, optimizer, n=1)
        loss = other.step(*batch(7))
        way.note("evaluation", loss.detach() if loss is not None else None, "owned")


@use(SCHEDULED, ScheduledPipeline="refused: the schedule 1F1B has backward passes, and")
def step_under_no_grad_to_evaluate(way):
    pipeline = way.pipeline(two(), one_f_one_b(2, 4), mse)
    with torch.no_grad():
        way.count_last(pipeline.step(*batch()))


@use(SCHEDULED)
def a_layer_replaced_in_a_stage_between_steps(way):
    stages = two(nn.Sequential(nn.Linear(5, 2)))
    pipeline = way.pipeline(stages, one_f_one_b(2, 4), mse)
    steps(way, pipeline, way.own_optimizer(), n=1)
    torch.manual_seed(9)
    stages[1][0] = nn.Linear(5, 2)
    steps(way, pipeline, way.own_optimizer(), n=2)


@use(SCHEDULED)
def a_compiled_stage_with_i_and_w(way):
    stages = two()
    for m in stages:
        m.compile(backend="aot_eager")
    train(way, stages, schedule=zero_bubble_h1(2, 2))


@use(SCHEDULED)
def stages_in_a_v_with_a_shared_layer_inside_one(way):
    shared = nn.Linear(4, 4)
    stages = [nn.Sequential(shared, nn.Tanh(), shared), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)]
    train(way, stages, schedule=zero_bubble_v(2, 4))


@use(SCHEDULED, ScheduledPipeline="refused: batch_first")
def an_encoder_layer_with_time_first_in_a_stage(way):
    first = Do(lambda m, x: x[:, None].expand(-1, 3, -1) * m.scale, scale=nn.Parameter(torch.ones(4)))
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
    train(way, [first, nn.Sequential(layer, Do(lambda m, x: m.last(x.mean(1)), last=nn.Linear(4, 2)))])


@use(SCHEDULED, ScheduledPipeline="documented: after that the pipeline is of no use")
def an_exception_in_a_stage_and_a_step_after_it(way):
    def maybe(m, x):
        if m.fails:
            raise MemoryError("out of memory")
        return m.last(x)

    last = Do(maybe, last=nn.Linear(5, 2))
    pipeline = way.pipeline(two(last), one_f_one_b(2, 4), mse)
    optimizer = way.own_optimizer()
    for step in range(2):
        last.fails = step == 0
        optimizer.zero_grad()
        try:
            way.count_last(pipeline.step(*batch(step)))
        except MemoryError:
            continue
        way.step(optimizer)


@use(SCHEDULED, ScheduledPipeline="refused: rank 1 cannot take part in the pipeline, so no")
def a_missing_target_on_the_last_rank(way):
    pipeline = way.pipeline(two(), one_f_one_b(2, 4), mse)
    pipeline.step(batch()[0], None if way.name != "plain" else batch()[1])


@use(SCHEDULED, ScheduledPipeline="refused: rank 1 has a different model from rank 0: it")
def a_stage_in_buckets(way):
    """Data parallel around a pipeline's stage, of which every rank has another."""
    stages = two()
    if way.name != "plain":
        from labkit.dp import BucketedDataParallel

        stages[dist.get_rank()] = BucketedDataParallel(stages[dist.get_rank()])
    train(way, stages)
