### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.6; test_answers.py says how they are written."""

from labkit.check import dp_6 as claims

FIRST = "cap_bytes if buckets or first_cap_bytes is None else first_cap_bytes"
TAKES, ROOM, END = "buckets[-1].append(index)", "room -= sizes_bytes[index]", "return buckets"
BY_SLICES = """
def assign_buckets(sizes_bytes, cap_bytes, first_cap_bytes=None):
    buckets, end, cap = [], len(sizes_bytes), first_cap_bytes or cap_bytes
    while end > 0:
        starts = [start for start in range(end) if sum(sizes_bytes[start:end]) >= cap]
        start = max(starts, default=0)
        buckets.append(list(range(start, end))[::-1])
        end, cap = start, cap_bytes
    return buckets
"""

WRONG = {
    claims.each_parameter_is_in_one_bucket: {
        "forgets the bucket that is open": ("is in no bucket", (END, "return buckets if room <= 0 else buckets[:-1]")),
        "splits one": ("is there twice", (TAKES, f"{TAKES}; buckets += [[index]] * (sizes_bytes[index] > cap_bytes)")),
        "counts from 1": ("there is no parameter 4", (TAKES, "buckets[-1].append(index + 1)")),
        "gives numbers, not lists": ("it gave [3, 2, 1, 0], expected a", (END, "return sum(buckets, [])")),
    },
    claims.buckets_are_torchs: {
        "ascending within a bucket": ("[1, 0]]: numbers go down", (TAKES, "buckets[-1].insert(0, index)")),
        "opens a bucket for nothing": ("bucket 2 is empty", (END, "return buckets + [[]] * (room <= 0)")),
        "first capacity for all": ("closed before it had reached 8 bytes (fi", (FIRST, "first_cap_bytes or cap_bytes")),
        "no first capacity": ("after it had reached 4 bytes (first_cap", (FIRST, "cap_bytes")),
        "a capacity in whole bytes": ("2.5): it gave [[4, 3], [2, 1], [0]]", (FIRST, f"int({FIRST})")),
    },
    claims.sizes_stay: {"empties the list": ("left the list as []", (ROOM, "room -= sizes_bytes.pop()"))},
    None: {"raises where there is nothing": ("([], 4): it raised IndexError", (END, "return buckets[-1] and buckets"))},
}
RIGHT = {"by slices": [BY_SLICES]}
