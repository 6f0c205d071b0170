### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to shard.3; test_answers.py says how they are written."""

from labkit.check import shard_3 as claims

COPY, COPY_BACK = "return x.view_as(x)", "return sum_over_ranks(dy, ctx.group), None"
SUM, SUM_BACK = "return sum_over_ranks(x, group)", "return dy, None"
COLUMN_WEIGHT = "linear.weight.detach().tensor_split(n_ranks)[rank].clone()"
COLUMN_BIAS = "linear.bias.detach().tensor_split(n_ranks)[rank].clone()"
ROW_WEIGHT = "linear.weight.detach().tensor_split(n_ranks, dim=1)[rank].clone()"
COLUMN = "return torch.nn.functional.linear(CopyToRanks.apply(x, self.group), self.weight, self.bias)"
LINEAR = "torch.nn.functional.linear(x, self.weight)"
ROW, BIAS = (
    f"y = SumOverRanks.apply({LINEAR}, self.group)",
    "return y if self.bias is None else y + self.bias.to(y.dtype)",
)
WRONG = {
    None: {
        "cuts the bias by its inputs": (
            "it raised RuntimeError",
            (BIAS, "return y if self.bias is None else y + self.bias.tensor_split(3)[0]"),
        )
    },
    claims.each_rank_keeps_its_part: {
        "keeps all of the first": (
            "its outputs, the rows of the matrix",
            (COLUMN_WEIGHT, "linear.weight.detach().clone()"),
        ),
        "cuts the first by inputs": ("its outputs, the rows of the matrix", (COLUMN_WEIGHT, ROW_WEIGHT)),
        "keeps all of the first's bias": ("rank 0's first.bias", (COLUMN_BIAS, "linear.bias.detach().clone()")),
        "cuts the second by outputs": ("its inputs, the columns of the matrix", (ROW_WEIGHT, COLUMN_WEIGHT)),
        "keeps the layer": (
            "rank 0 keeps first.linear.bias as well",
            (f"torch.nn.Parameter({COLUMN_WEIGHT})", f"torch.nn.Parameter({COLUMN_WEIGHT}); self.linear = linear"),
        ),
        "chunks the second": ("its inputs", (ROW_WEIGHT, "linear.weight.detach().chunk(n_ranks)[rank].clone()")),
    },
    claims.calls_have_ended: {
        "does not wait": (
            "began all_reduce",
            (SUM, "x = x.clone(); dist.all_reduce(x, group=group, async_op=True); return x"),
        )
    },
    claims.output_is_that_of_the_plain_layers: {
        "adds the bias on each rank": (
            "the bias 2 times",
            (LINEAR, "torch.nn.functional.linear(x, self.weight, self.bias)"),
            (BIAS, "return y"),
        ),
        "forgets the bias": ("lacks the bias", (BIAS, "return y")),
        "does not add up": ("is this rank's part of the sum", (SUM, "return x.view_as(x)")),
        "takes the mean": (
            "is a mean over the ranks",
            (SUM, "return sum_over_ranks(x, group) / dist.get_world_size()"),
        ),
        "sums the input": ("neither the plain MLP's", (COPY, "return sum_over_ranks(x, group)")),
    },
    claims.gradients_are_those_of_the_plain_layers: {
        "no sum in backward": ("from this rank's outputs alone", (COPY_BACK, "return dy, None")),
        "a sum in both": (
            "2 times too large: SumOverRanks",
            (SUM_BACK, "ctx.group = None; return sum_over_ranks(dy), None"),
        ),
        "a mean in backward": (
            "gradient of the input is a mean",
            (COPY_BACK, "return sum_over_ranks(dy, ctx.group) / dist.get_world_size(), None"),
        ),
        "cuts the graph": (
            "gradient of the input is None",
            (COLUMN, COLUMN.replace("CopyToRanks.apply(x, self.group)", "x.detach()")),
        ),
        "leaves f out": (
            "from this rank's outputs alone",
            (COLUMN, COLUMN.replace("CopyToRanks.apply(x, self.group)", "x")),
        ),
    },
    claims.one_all_reduce_a_pass: {
        "a sum too many": ("makes 2 calls in forward", (ROW, f"{ROW}\n        sum_over_ranks(y)")),
        "sums a gradient twice": (
            "makes 2 calls in backward",
            (COPY_BACK, "sum_over_ranks(dy); return sum_over_ranks(dy, ctx.group), None"),
        ),
    },
}
RIGHT = {
    "sums by itself": [(SUM, "x = x.clone()\n        dist.all_reduce(x, group=group)\n        return x")],
    "its own matrix product": [
        (COLUMN, COLUMN.replace("self.weight, self.bias)", "self.weight) + (0 if self.bias is None else self.bias)"))
    ],
    "narrows": [(COLUMN_WEIGHT, "torch.tensor_split(linear.weight.detach(), n_ranks, 0)[rank].contiguous().clone()")],
    "hands on x itself": [(COPY, "return x")],
    "waits for the sum": [
        (SUM, "x = x.clone()\n        dist.all_reduce(x, group=group, async_op=True).wait()\n        return x")
    ],
}
