### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong answers to dp.7, each with the claim that rejects it and a phrase of the finding; and right ones."""

from __future__ import annotations

import textwrap

from labkit.judging import reducer_claims as claims

MARK = """
bucket.collect(position)
bucket.missing.remove(position)
"""
SEND_FULL = """
while self._sent < len(self.buckets) and not self.buckets[self._sent].missing:
    self.buckets[self._sent].send(self.comm_hook)
    self._sent += 1
"""
COLLECT = "for position in bucket.missing: bucket.collect(position)"
SEND_REST = f"""
for bucket in self.buckets[self._sent:]:
    {COLLECT}
    bucket.send(self.comm_hook)
"""
WAIT = """
for bucket in self.buckets:
    bucket.wait()
"""


def reducer(ready: str = MARK + SEND_FULL, finish: str = SEND_REST + WAIT, in_no_sync: str = "return") -> str:
    """Both methods of BucketedDataParallel, with these lines where the student writes; the rest as it is given."""
    return f"""
def _gradient_is_ready(self, bucket, position):
    if not self._synchronize:
        {in_no_sync}
{textwrap.indent(ready.strip(), "    ")}

def finish_gradient_synchronization(self):
    if not self._has_ready_gradients():
        raise RuntimeError("there is no gradient to average")
{textwrap.indent(finish.strip(), "    ")}
    self._sent = 0
    for bucket in self.buckets:
        bucket.future, bucket.missing = None, set(range(len(bucket.parameters)))

BucketedDataParallel._gradient_is_ready = _gradient_is_ready
BucketedDataParallel.finish_gradient_synchronization = finish_gradient_synchronization
"""


TAKE_THE_VIEW = "bucket.parameters[position].grad = bucket.views[position]"
PAST_THE_HOOK = SEND_REST.replace("self.comm_hook", "all_reduce_hook")
IN_ANY_ORDER = """
if not bucket.missing:
    bucket.send(self.comm_hook)
    self._sent += 1
"""
SEND_THOSE_LEFT = f"""
for bucket in self.buckets:
    if bucket.future is None:
        {COLLECT}
        bucket.send(self.comm_hook)
"""
ONE_TOO_MANY = """
while self._sent < len(self.buckets) and not self.buckets[max(0, self._sent - 1)].missing:
    self.buckets[self._sent].send(self.comm_hook)
    self._sent += 1
"""
COLLECT_LATE = """
bucket.missing.remove(position)
while self._sent < len(self.buckets) and not self.buckets[self._sent].missing:
    for each in range(len(self.buckets[self._sent].parameters)):
        self.buckets[self._sent].collect(each)
    self.buckets[self._sent].send(self.comm_hook)
    self._sent += 1
"""
READY_NOW = """
for bucket in self.buckets:
    for position in sorted(bucket.missing):
        self._gradient_is_ready(bucket, position)
"""
FINISH_COLLECT_LATE = """
for bucket in self.buckets[self._sent:]:
    for each in range(len(bucket.parameters)):
        bucket.collect(each)
    bucket.send(self.comm_hook)
for bucket in reversed(self.buckets):
    bucket.future.wait()
"""

WRONG = {
    "sends nothing": (
        claims.gradients_are_averaged,
        reducer(MARK, WAIT),
        "is the rank's own divided by 3, which is its share of the mean: send the bucket",
    ),
    "collects nothing": (
        claims.gradients_are_averaged,
        reducer("bucket.missing.remove(position)" + SEND_FULL),
        "is still the rank's own: collect it into its bucket",
    ),
    "divides once more": (
        claims.gradients_are_averaged,
        reducer(finish=SEND_REST + WAIT + "    bucket.buffer /= dist.get_world_size()"),
        "is 3 times too small: it was divided by the world size twice",
    ),
    "takes the sum": (
        claims.gradients_are_averaged,
        reducer(finish=SEND_REST + WAIT + "    bucket.buffer *= dist.get_world_size()"),
        "is 3 times too large",
    ),
    "marks nothing": (
        None,
        reducer("bucket.collect(position)" + SEND_FULL),
        "nothing was taken out of bucket.missing in the backward pass, so nobody knows which gradients are ready",
    ),
    "sends the rest as it is": (
        claims.unused_parameters_count_as_zero,
        reducer(finish=SEND_REST.replace(COLLECT, "") + WAIT),
        "is None, and should be the part of the buffer in which the mean is: collect it",
    ),
    "takes the buffer as it is": (
        claims.unused_parameters_count_as_zero,
        reducer(finish=SEND_REST.replace("bucket.collect(position)", TAKE_THE_VIEW) + WAIT),
        "the buffer may still hold the last step's gradients",
    ),
    "zeros in the buffer alone": (
        claims.accumulated_gradients_are_averaged,
        reducer(finish=SEND_REST.replace("bucket.collect(position)", "bucket.views[position].zero_()") + WAIT),
        "is still the rank's own: collect it into its bucket",
    ),
    "zeros for all that is missing": (
        claims.accumulated_gradients_are_averaged,
        reducer(finish=SEND_REST.replace("bucket.collect(position)", TAKE_THE_VIEW + ".zero_()") + WAIT),
        "collect what is missing, rather than set it to zero: a gradient may be there from inside no_sync",
    ),
    "puts new tensors in place": (
        claims.gradients_stay_in_their_buckets,
        reducer(finish=SEND_REST + WAIT + "    for p in bucket.parameters: p.grad = p.grad.clone()"),
        "is a tensor of its own",
    ),
    "forgets the unused": (
        claims.each_bucket_is_sent_once,
        reducer(finish=WAIT),
        "leaves out another layer, rank 0, step 0: bucket 0 was not sent",
    ),
    "forgets what is full but had to wait": (
        claims.each_bucket_is_sent_once,
        reducer(finish=SEND_REST.replace("[self._sent:]:", ":\n    if not bucket.missing: continue") + WAIT),
        "leaves out another layer, rank 0, step 0: bucket 1 was not sent",
    ),
    "takes a hook of its own": (
        claims.each_bucket_is_sent_once,
        reducer(MARK + SEND_FULL.replace("self.comm_hook", "all_reduce_hook"), PAST_THE_HOOK + WAIT),
        "all_reduce was called, but not by self.comm_hook",
    ),
    "takes a hook of its own in the end": (
        claims.each_bucket_is_sent_once,
        reducer(finish=PAST_THE_HOOK + WAIT),
        "leaves out another layer, rank 0, step 0: all_reduce was called, but not by self.comm_hook",
    ),
    "sends everything again": (
        claims.each_bucket_is_sent_once,
        reducer(finish=SEND_REST.replace("[self._sent:]", "") + WAIT),
        "bucket 0 was sent 2 times",
    ),
    "sends a gradient at a time": (
        claims.each_bucket_is_sent_once,
        reducer(MARK + "self.comm_hook(bucket.views[position].reshape(-1)[1:])", SEND_REST + WAIT),
        "something else than a bucket's whole buffer",
    ),
    "sends whatever is full": (
        claims.buckets_leave_in_order,
        reducer(MARK + IN_ANY_ORDER, SEND_THOSE_LEFT + WAIT),
        "in different orders, rank 0, step 1: buckets were sent in the order 2, 1, 0",
    ),
    "sends the next one too": (
        claims.no_bucket_leaves_unfinished,
        reducer(MARK + ONE_TOO_MANY),
        "A bucket may go once nothing of it is missing",
    ),
    "sends only in the end": (
        claims.a_bucket_leaves_at_once,
        reducer(MARK),
        "nothing was sent before the backward pass was over, so nothing overlaps",
    ),
    "sends before it marks": (
        claims.a_bucket_leaves_at_once,
        reducer(SEND_FULL + MARK),
        "1 of the buckets could have gone, and 0 had. Mark the gradient as ready first",
    ),
    "sends one at a time": (
        claims.a_bucket_leaves_at_once,
        reducer(MARK + SEND_FULL.replace("while", "if")),
        "3 of the buckets could have gone, and 1 had",
    ),
    "sends inside no_sync": (
        claims.nothing_is_sent_inside_no_sync,
        reducer(in_no_sync="self.comm_hook(bucket.buffer); return"),
        "a bucket was sent inside no_sync",
    ),
    "waits as soon as it has sent": (
        claims.backward_does_not_wait,
        reducer(MARK + SEND_FULL.replace("self._sent += 1", "self.buckets[self._sent].wait(); self._sent += 1")),
        "the backward pass stood still until a bucket had arrived",
    ),
    "does not wait for buckets": (
        claims.finish_waits,
        reducer(finish=SEND_REST),
        "of the buckets were still on their way",
    ),
    "waits for the last bucket": (
        claims.finish_waits,
        reducer(finish=SEND_REST + "self.buckets[-1].wait()"),
        "of the buckets were still on their way",
    ),
}
RIGHT = {
    "collects a bucket as it leaves": reducer(COLLECT_LATE, FINISH_COLLECT_LATE),
    "takes what is missing for ready": reducer(finish=READY_NOW + WAIT),
}
