### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.7; test_answers.py says how they are written."""

from labkit.check import dp_7 as claims

COLLECT, MARK = "bucket.collect(position)\n        bucket.m", "bucket.missing.remove(position)"
FULL, GONE, SEND, WAIT = "if each.missing", "if each.future is None", "each.send(self.comm_hook)", "bucket.wait()"
COLLECT_REST = ":\n                    bucket.collect(position)"
TAKE = "bucket.parameters[position].grad = bucket.views[position]"
COLLECT_ALL = f"[each.collect(position) for position in range(len(each.parameters))]; {SEND}"
READY_NOW = """for bucket in self.buckets:
            for position in sorted(bucket.missing):
                self._gradient_is_ready(bucket, position)
        for bucket in []:
            if bucket.f"""
SEND_ALWAYS = """_ready = BucketedDataParallel._gradient_is_ready
def _send_always(self, bucket, position):
    if not self._synchronize: self.comm_hook(bucket.buffer)
    _ready(self, bucket, position)
BucketedDataParallel._gradient_is_ready = _send_always
"""
WRONG = {
    None: {"takes out whatever is missing": ("had lost c.bias before that was ready", (MARK, "bucket.missing.pop()"))},
    claims.each_bucket_leaves_in_turn_and_in_time: {
        "marks nothing": ("nothing was taken out of bucket.missing", (MARK, "pass")),
        "takes a hook of its own": ("bucket 0 was not sent with", (SEND, SEND.replace("self.comm", "all_reduce"))),
        "forgets the unused": ("step 0: bucket 0 was not sent", (" bucket.send(self.comm_hook)", " pass")),
        "sends everything again": ("bucket 0 was sent 2 times", ("if bucket.future is None", "if True")),
        "sends each gradient": ("something other than", (MARK, f"{MARK}; self.comm_hook(bucket.views[position])")),
        "sends whatever is full": (
            "in different orders: rank 0, step 1: bucket 2 was sent before bucket 0",
            ("break", "continue"),
        ),
        "sends inside no_sync": ("a bucket was sent inside no_sync", SEND_ALWAYS),
        "sends the next one as well": ("bucket 1 was sent before all", (FULL, "if bucket.missing")),
        "sends one at a time": ("step 1: bucket 1 could have gone", (SEND, f"{SEND}; break")),
        "waits as soon as it has sent": ("pass stood still", (SEND, f"{SEND}; each.wait()")),
        "waits for the last bucket": ("while 2 of the buckets were still", (WAIT, "self.buckets[-1].wait()")),
        "asks whether they have arrived": ("while 3 of the buckets were still", (WAIT, "bucket.future.done()")),
        "divides what is on its way": ("was changed while it was on its way", (WAIT, f"bucket.buffer /= 3; {WAIT}")),
    },
    claims.gradients_are_averaged: {
        "collects nothing": ("is still the rank's own", (COLLECT, "bucket.m")),
        "divides each bucket once more": ("3 times too small", (WAIT, f"{WAIT}; bucket.buffer /= 3")),
        "does not divide": ("3 times too large", (MARK, f"{MARK}; bucket.views[position] *= 3")),
        "takes the sum": ("3 times too large", (WAIT, f"{WAIT}; bucket.buffer *= 3")),
        "zeros in the buffer alone": ("is None, and should be", (COLLECT_REST, ": bucket.views[position].zero_()")),
        "collects what is there again": ("3 times too small", ("in bucket.missing:", "in range(len(bucket.views)):")),
        "zeros for what is missing": ("inside no_sync", (COLLECT_REST, f": {TAKE}.zero_()")),
        "takes the buffer as it is": ("step 2: the gradient of c.bias is neither", (COLLECT_REST, f": {TAKE}")),
        "puts new tensors in place": ("of its own", (WAIT, f"{WAIT}; bucket.parameters[0].grad = bucket.views[0] / 1")),
    },
}
RIGHT = {
    "collects a bucket as it leaves": [
        (COLLECT, "bucket.m"),
        (SEND, COLLECT_ALL),
        ("in bucket.missing:", "in range(len(bucket.parameters)):"),
        ("in self.buckets:\n            bucket.w", "in reversed(self.buckets):\n            bucket.future.w"),
    ],
    "takes what is missing for ready": [("for bucket in self.buckets:\n            if bucket.f", READY_NOW)],
    "waits for all at once": [(WAIT, "torch.futures.wait_all([each.future for each in self.buckets])")],
    "collects what it waits for": [(WAIT, "torch.futures.collect_all([each.future for each in self.buckets]).wait()")],
    "asks until they have arrived": [(WAIT, "while not bucket.future.done(): pass")],
}
PAST_AT_THE_END = (" bucket.send(self.comm_hook)", " bucket.future = self.comm_hook(bucket.buffer)")
WRONG[claims.each_bucket_leaves_in_turn_and_in_time] |= {
    "forgets what has gone": ("bucket 0 was sent 7 times", (GONE, "if True")),
    "calls the hook itself": (
        "comm_hook was called past its send",
        (SEND, "each.future = self.comm_hook(each.buffer)"),
        PAST_AT_THE_END,
    ),
    "calls the hook itself at the end": ("comm_hook was called past its send", PAST_AT_THE_END),
    "knows three buckets": (
        "bucket 3 could have gone",
        (f"self.buckets:\n            {FULL}", f"self.buckets[:3]:\n            {FULL}"),
    ),
}
LOOP = f"""for each in self.buckets:
            {FULL}:
                break
            {GONE}:
                {SEND}
"""
WHILE = """sent = sum(each.future is not None for each in self.buckets)
        while sent < len(self.buckets) and not self.buckets[sent].missing:
            self.buckets[sent].send(self.comm_hook)
            sent += 1
"""
RIGHT |= {"counts those that have gone": [(LOOP, WHILE)]}
