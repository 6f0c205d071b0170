### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to dp.6; test_answers.py says how they are written."""

from labkit.check import dp_6 as claims

FIRST = "cap_bytes if buckets or first_cap_bytes is None else first_cap_bytes"
IN_TURN = "in reversed(range(len(sizes_bytes)))"
OPENS, TAKES, ROOM = "if room <= 0", "buckets[-1].append(index)", "room -= sizes_bytes[index]"
END = "return buckets"
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
        "forgets the bucket that is open": (
            "is in no bucket. Do not forget the last bucket",
            (END, "return buckets if room <= 0 else buckets[:-1]"),
        ),
        "splits what is too large": (
            "parameter 0 is there twice. A parameter is never split",
            (TAKES, f"{TAKES}; buckets.extend([[index]] * (sizes_bytes[index] > cap_bytes))"),
        ),
        "counts from 1": (
            "there is no parameter 4. Parameters are counted from 0",
            (TAKES, "buckets[-1].append(index + 1)"),
        ),
        "gives nothing": ("assign_buckets([4, 4, 4, 4], 8): it gave None, expected a list", (END, "return None")),
        "gives numbers, not lists": ("it gave [3, 2, 1, 0], expected a", (END, "return sum(buckets, [])")),
    },
    claims.buckets_are_torchs: {
        "from the first to the last": (
            "gave [[0, 1], [2, 3]], torch gives [[3, 2], [1, 0]]: numbers go down",
            (IN_TURN, "in range(len(sizes_bytes))"),
        ),
        "ascending within a bucket": ("[1, 0]]: numbers go down", (TAKES, "buckets[-1].insert(0, index)")),
        "closes before it would be too full": (
            "bucket 0 was closed at 5 bytes, before it had reached 6. It still takes",
            (OPENS, "if room <= 0 or (buckets[-1] and room < sizes_bytes[index])"),
        ),
        "closes once it is beyond": ("8 bytes before it took parameter 1", (OPENS, "if not buckets or room < 0")),
        "opens a bucket for nothing": ("bucket 2 is empty", (END, "return buckets + [[]] * (room <= 0)")),
        "first capacity for all": (
            "bucket 1 was closed at 4 bytes, before it had reached 8 (first_cap_bytes is for the first bucket",
            (FIRST, "first_cap_bytes or cap_bytes"),
        ),
        "no first capacity": ("bucket 0 had reached 4 bytes (first_cap_bytes is for", (FIRST, "cap_bytes")),
        "a capacity in whole bytes": (
            "2.5): it gave [[4, 3], [2, 1], [0]], torch gives [[4, 3, 2], [1, 0]]",
            (FIRST, f"int({FIRST})"),
        ),
    },
    claims.sizes_stay: {
        "empties the list": ("left the list as []. Go", (ROOM, "room -= sizes_bytes.pop()")),
    },
    None: {
        "raises where there is nothing": (
            "assign_buckets([], 4): it raised IndexError: list index out of range (labkit/dp.py, line ",
            (END, "return buckets if buckets[-1] else []"),
        ),
    },
}
RIGHT = {"by slices": [BY_SLICES]}
