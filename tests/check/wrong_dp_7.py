### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.7; test_answers.py says how they are written."""

from labkit.check import dp_7 as claims

COLLECT, MARK = "        bucket.collect(position)\n        bucket.missing", "bucket.missing.remove(position)\n"
SEND_FULL = """        while self._sent < len(self.buckets) and not self.buckets[self._sent].missing:
            self.buckets[self._sent].send(self.comm_hook)
            self._sent += 1
"""
REST, ALL = "for bucket in self.buckets[self._sent :]:\n", "for bucket in self.buckets:\n"
COLLECT_REST = "            for position in bucket.missing:\n                bucket.collect(position)\n"
SEND_REST = f"        {REST}{COLLECT_REST}            bucket.send(self.comm_hook)\n"
PAST_THE_HOOK = (SEND_REST, SEND_REST.replace("self.comm_hook", "all_reduce_hook"))
SEND_PART = "        self.comm_hook(bucket.views[position])\n"
WAIT = "        for bucket in self.buckets:\n            bucket.wait()\n"
TAKE_THE_VIEW = "bucket.parameters[position].grad = bucket.views[position]"
IN_ANY_ORDER = """        if not bucket.missing:
            bucket.send(self.comm_hook)
            self._sent += 1
"""
COLLECT_ALL = """            for each in range(len(self.buckets[self._sent].parameters)):
                self.buckets[self._sent].collect(each)
"""
READY_NOW = """        for bucket in self.buckets:
            for position in sorted(bucket.missing):
                self._gradient_is_ready(bucket, position)
"""
SEND_ALWAYS = """_ready = BucketedDataParallel._gradient_is_ready
def _send_always(self, bucket, position):
    if not self._synchronize: self.comm_hook(bucket.buffer)
    _ready(self, bucket, position)
BucketedDataParallel._gradient_is_ready = _send_always
"""


def then(change: str) -> tuple[str, str]:
    """Change each bucket after it has arrived."""
    return WAIT, f"{WAIT}            bucket.{change}\n"


def rest(collect: str) -> tuple[str, str]:
    """Something else for each gradient that is missing in the end."""
    return COLLECT_REST, COLLECT_REST.replace("bucket.collect(position)", collect)


WRONG = {
    claims.each_bucket_is_sent_once_and_in_order: {
        "marks nothing": ("nothing was taken out of bucket.missing in the backward pass", (MARK, "pass\n")),
        "sends nothing": ("bucket 0 was not sent, and the other ranks would wait", (SEND_FULL, ""), (SEND_REST, "")),
        "forgets the unused": ("another layer: rank 0, step 0: bucket 0 was not sent", (SEND_REST, "")),
        "forgets what is full but had to wait": (
            "another layer: rank 0, step 0: bucket 1 was not sent",
            (REST, f"{ALL}            if not bucket.missing: continue\n"),
        ),
        "takes a hook of its own": (
            "where all ranks do the same: rank 0, step 0: all_reduce was called, but not by self.comm_hook",
            (SEND_FULL, SEND_FULL.replace("self.comm_hook", "all_reduce_hook")),
            PAST_THE_HOOK,
        ),
        "takes a hook of its own in the end": ("all_reduce was called, but not by", PAST_THE_HOOK),
        "sends everything again": ("bucket 0 was sent 2 times", (REST, ALL)),
        "sends a gradient at a time": ("something else than a bucket's whole buffer", (SEND_FULL, SEND_PART)),
        "sends whatever is full": (
            "in different orders: rank 0, step 1: buckets were sent in the order 2, 1, 0",
            (SEND_FULL, IN_ANY_ORDER),
            (REST, f"{ALL}            if bucket.future is not None: continue\n"),
        ),
        "sends inside no_sync": ("a bucket was sent inside no_sync", SEND_ALWAYS),
    },
    claims.a_bucket_leaves_once_it_is_full: {
        "sends the next one too": (
            "A bucket may go once nothing of it is missing",
            ("not self.buckets[self._sent].missing", "not self.buckets[max(0, self._sent - 1)].missing"),
        ),
        "sends only in the end": ("Nothing overlaps: all was sent after the backward", (SEND_FULL, "")),
        "sends before it marks": (
            "1 of the buckets could have gone, and 0 had. Mark the gradient as ready first",
            (MARK + SEND_FULL, SEND_FULL.lstrip() + "        " + MARK),
        ),
        "sends one at a time": ("could have gone, and 1 had", (SEND_FULL, SEND_FULL.replace("while", "if"))),
    },
    claims.finish_waits_and_backward_does_not: {
        "waits as soon as it has sent": (
            "the backward pass stood still until a bucket had arrived",
            ("self._sent += 1", "self.buckets[self._sent].wait(); self._sent += 1"),
        ),
        "does not wait for buckets": ("while 3 of the buckets were still on their way", (WAIT, "")),
        "waits for the last bucket": ("while 2 of the buckets were", (WAIT, "        self.buckets[-1].wait()\n")),
        "asks whether they have arrived": ("were still on their way", (".wait()", ".future.done()")),
    },
    claims.gradients_are_averaged: {
        "collects nothing": ("is still the rank's own: collect it into its", (COLLECT, "        bucket.missing")),
        "divides once more": ("is 3 times too small: it was divided by the world size twice", then("buffer /= 3")),
        "takes the sum": ("is 3 times too large", then("buffer *= 3")),
        "divides what is on its way": ("is neither the mean", ("bucket.wait()", "bucket.buffer /= 3; bucket.wait()")),
        "sends the rest as it is": ("is None, and should be the part of the buffer in which the", (COLLECT_REST, "")),
        "zeros in the buffer alone": ("is None, and should be", rest("bucket.views[position].zero_()")),
        "takes the buffer as it is": ("the buffer may still hold the last step's gradients", rest(TAKE_THE_VIEW)),
        "zeros for all that is missing": ("may be there from inside no_sync", rest(f"{TAKE_THE_VIEW}.zero_()")),
        "puts new tensors in place": ("is a tensor of its own", then("parameters[0].grad = bucket.views[0].clone()")),
    },
}
RIGHT = {
    "collects a bucket as it leaves": [
        (COLLECT, "        bucket.missing"),
        (SEND_FULL, SEND_FULL.replace("missing:\n", f"missing:\n{COLLECT_ALL}")),
        (COLLECT_REST, COLLECT_REST.replace("bucket.missing", "range(len(bucket.parameters))")),
        (WAIT, "        for bucket in reversed(self.buckets):\n            bucket.future.wait()\n"),
    ],
    "takes what is missing for ready": [(SEND_REST, READY_NOW)],
    "waits for all at once": [(WAIT, "        torch.futures.wait_all([bucket.future for bucket in self.buckets])\n")],
    "asks until they have arrived": [("bucket.wait()", "while not bucket.future.done(): pass")],
}
