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
            "what its outputs need",
            (COLUMN_WEIGHT, "linear.weight.detach().clone()"),
        ),
        "cuts the first by inputs": ("what its outputs need", (COLUMN_WEIGHT, ROW_WEIGHT)),
        "keeps all of the first's bias": ("rank 0's first.bias", (COLUMN_BIAS, "linear.bias.detach().clone()")),
        "cuts the second by outputs": ("what its inputs need", (ROW_WEIGHT, COLUMN_WEIGHT)),
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
CHUNK = [(each, each.replace("tensor_split", "chunk")) for each in (COLUMN_WEIGHT, COLUMN_BIAS, ROW_WEIGHT)]
ROW_BIAS = "linear.bias.detach().clone()"
ADDED_EARLY = [(LINEAR, LINEAR.replace("weight)", "weight, self.bias)")), (BIAS, "return y")]
WRONG[claims.each_rank_keeps_its_part] |= {
    "chunks all": ("(drawn with seed=", *CHUNK),
    "parts of all ranks": (
        "process group by itself",
        (ROW_WEIGHT, ROW_WEIGHT.replace("n_ranks", "dist.get_world_size()").replace("[rank]", "[dist.get_rank()]")),
    ),
    "a buffer for the bias": (
        "second.bias is missing",
        (f"torch.nn.Parameter({ROW_BIAS})", f"torch.nn.Buffer({ROW_BIAS})"),
    ),
}
WRONG[claims.a_part_is_a_copy] = {
    "its number among all ranks": (
        "has other numbers than the layer's",
        (COLUMN_WEIGHT, COLUMN_WEIGHT.replace("[rank]", "[dist.get_rank() % n_ranks]")),
    ),
    "a view of the first": (
        "all of first.weight is still in memory",
        (COLUMN_WEIGHT, COLUMN_WEIGHT.removesuffix(".clone()")),
    ),
    "contiguous parts": (
        "all of first.weight is still in",
        (COLUMN_WEIGHT, COLUMN_WEIGHT.replace("clone", "contiguous")),
    ),
    "a view of the second": (
        "all of second.weight is still in memory",
        (ROW_WEIGHT, ROW_WEIGHT.removesuffix(".clone()")),
    ),
    "the bias itself": ("all of second.bias is still in memory", (f"torch.nn.Parameter({ROW_BIAS})", "linear.bias")),
    "keeps the layer out of sight": (
        "is still in memory",
        (
            f"torch.nn.Parameter({COLUMN_WEIGHT})",
            f"torch.nn.Parameter({COLUMN_WEIGHT}); self.__dict__['linear'] = linear",
        ),
    ),
    "an N-th of the bias": ("second.bias has other numbers", (ROW_BIAS, f"{ROW_BIAS} / n_ranks"), *ADDED_EARLY),
    "the bias on the first rank alone": (
        "rank 1's second.bias has other",
        (ROW_BIAS, f"{ROW_BIAS} * (rank == 0)"),
        *ADDED_EARLY,
    ),
    "changes the layer's bias": (
        "second.bias of the layer that was given",
        (ROW_BIAS, "linear.bias.detach().mul_(0.5).clone() * 2"),
    ),
    "empties the layer": (
        "second.weight of the layer that was given",
        (f"torch.nn.Parameter({ROW_WEIGHT})", f"torch.nn.Parameter({ROW_WEIGHT}); linear.weight = None"),
    ),
}
WRONG[claims.output_is_that_of_the_plain_layers] |= {
    "sums over all ranks": ("process_group have a part of it", (SUM, "return sum_over_ranks(x)")),
    "applies without the group": ("process_group have a part of it", (ROW, ROW.replace("self.group", "None"))),
}
WRONG[claims.gradients_are_those_of_the_plain_layers] |= {
    "sums over all ranks in backward": (
        "process_group have a part of it",
        (COPY_BACK, "return sum_over_ranks(dy), None"),
    ),
    "copies without the group": ("process_group have a part of it", (COLUMN, COLUMN.replace("self.group", "None"))),
    "trains what is frozen": ("is frozen", (BIAS, f"self.weight.requires_grad_()\n        {BIAS}")),
    "trains all of the first": ("is frozen", (COLUMN, f"self.weight.requires_grad_(); {COLUMN}")),
    "an N-th in forward": (
        "gradient of second.bias is not that of",
        (
            LINEAR,
            LINEAR.replace(
                "weight)", "weight, None if self.bias is None else self.bias / dist.get_world_size(self.group))"
            ),
        ),
        (BIAS, "return y"),
    ),
}
WRONG[claims.a_sum_is_a_new_tensor] = {
    "sums x in place": ("SumOverRanks' forward changes in place", (SUM, "dist.all_reduce(x, group=group); return x")),
    "sums the gradient in place": (
        "CopyToRanks' backward changes",
        (COPY_BACK, "dist.all_reduce(dy, group=ctx.group); return dy, None"),
    ),
}
WRONG[claims.nothing_more_is_kept] = {
    "saves what it sums": ("SumOverRanks keeps a tensor", (SUM, f"ctx.save_for_backward(x); {SUM}")),
    "keeps the input": ("CopyToRanks keeps a tensor", (COPY, f"ctx.x = x; {COPY}")),
    "keeps the output": ("the output stays in memory", (BIAS, f"self.__dict__['last'] = y\n        {BIAS}")),
}
REDUCE = """total, first = x.clone(), dist.get_global_rank(group, 0) if group else 0
        dist.reduce(total, first, group=group)
        dist.broadcast(total, first, group=group)
        return total"""
GATHERED = """found = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(found, x.contiguous(), group=group)
        return sum(found)"""
RIGHT |= {
    "reduces and broadcasts": [(SUM, REDUCE)],
    "gathers and adds": [(SUM, GATHERED)],
    "a gradient only where one is asked for": [
        (COPY_BACK, "return (sum_over_ranks(dy, ctx.group) if ctx.needs_input_grad[0] else None), None")
    ],
    "by the operator": [(LINEAR, "x @ self.weight.t()")],
}
REMARKS = {
    "reduces and broadcasts": "forms a sum by reduce and broadcast",
    "gathers and adds": "forms a sum by all_gather",
}
