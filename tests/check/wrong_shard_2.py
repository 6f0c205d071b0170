### INSTRUCTORS ONLY: this file holds answers, so it is not in the student edition
"""Wrong and right answers to shard.2; test_answers.py says how they are written."""

from labkit.check import shard_2 as claims

ROOM = "unit.full.untyped_storage().resize_(unit.full.nbytes)"
GATHER = "return all_gather_into_tensor(unit.full, unit.shard.to(unit.full.dtype), async_op=True)"
HIDE, FREE = "unit.use_shard()", "unit.full.untyped_storage().resize_(0)"
START = "reduce_scatter_tensor(part, unit.take_gradients(), async_op=True)"
RETURN = f"return OnItsWay(unit, part, {START})"
WAIT, ADD = "work.wait()\n", "unit.add_gradient(part / dist.get_world_size())"
REPLICATED, DIVIDE = "dist.all_reduce(gradient)", "gradient.div_(dist.get_world_size())"
GATHER_LIST = """parts = list(unit.full.chunk(dist.get_world_size()))
        return dist.all_gather(parts, unit.shard.to(unit.full.dtype), async_op=True)"""
GATHER_WIDE = """row = unit.shard.new_empty(len(unit.full))
        work = all_gather_into_tensor(row, unit.shard, async_op=True)
        work.wait()
        unit.full.copy_(row)
        return work"""
INTO_A_COPY = GATHER.replace("unit.full, ", "unit.full.clone(), ")
SCATTER_LIST = """row = unit.take_gradients()
        return OnItsWay(unit, part, dist.reduce_scatter(part, list(row.chunk(dist.get_world_size())), async_op=True))"""
ALL_REDUCE = """row = unit.take_gradients()
        work = dist.all_reduce(row, async_op=True)
        return OnItsWay(unit, row.chunk(dist.get_world_size())[dist.get_rank()], work)"""
IN_COMPUTE_DTYPE = """part = part.to(unit.full.dtype)
        row = unit.take_gradients().to(unit.full.dtype)
        return OnItsWay(unit, part, reduce_scatter_tensor(part, row, async_op=True))"""
OWN_PART = """row = unit.take_gradients()
        work = reduce_scatter_tensor(torch.empty_like(part), row, async_op=True)
        return OnItsWay(unit, row.chunk(dist.get_world_size())[dist.get_rank()], work)"""
FLAT = """row = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(row)
            means = (row / dist.get_world_size()).split([gradient.numel() for gradient in gradients])
            for gradient, mean in zip(gradients, means):
                gradient.copy_(mean.view_as(gradient))
            for gradient in []:
"""
WRONG = {
    None: {
        "returns no work": ("it raised TypeError: _gather returned None", (GATHER, GATHER.removeprefix("return "))),
        "gathers at once": ("_gather returned None", (GATHER, GATHER.replace(", async_op=True", ""))),
        "never gathers": ("_gather returned None", (GATHER, "unit.full.copy_(unit.shard.repeat(2))")),
        "gives full no memory": ("it raised", (ROOM, "pass")),
        "keeps the pieces": ("it raised", (HIDE, "pass")),
    },
    claims.layers_compute_with_all_of_their_weights: {
        "gathers into a copy": ("once the work that _gather returns", (GATHER, f"unit.full.zero_(); {INTO_A_COPY}")),
        "takes the first rank's": (
            "one after the other",
            (GATHER, "return dist.broadcast(unit.full.copy_(unit.shard.repeat(2)), 0, async_op=True)"),
        ),
        "adds up the shards": (
            "the shards of all ranks",
            (GATHER, "return dist.all_reduce(unit.full.copy_(unit.shard.repeat(2)), async_op=True)"),
        ),
    },
    claims.layers_are_let_go: {
        "frees nothing": ("after forward of first: the whole weights of first still take memory", (FREE, "pass")),
        "frees a copy": ("still take memory", (FREE, "unit.full.clone().untyped_storage().resize_(0)")),
        "lets go in backward alone": (
            "after forward of first",
            (HIDE, "unit.use_shard()\n        if torch.is_grad_enabled(): return"),
        ),
    },
    claims.weights_travel_in_the_compute_dtype: {
        "casts what has arrived": ("weights travel as float64, expected float32", (GATHER, GATHER_WIDE)),
        "gradients in 16 bits": (
            "gradients travel as float32, expected float64",
            (RETURN, IN_COMPUTE_DTYPE),
            (ADD, ADD.replace("part", "part.to(unit.shard.dtype)")),
        ),
    },
    claims.gradients_leave_while_backward_goes_on: {
        "waits at once": (
            "backward waited for a reduce_scatter",
            (RETURN, f"work = {START}\n        work.wait()\n        return OnItsWay(unit, part, work)"),
        ),
        "all_reduce instead": ("and all_reduce did, which moves twice the bytes", (RETURN, ALL_REDUCE)),
    },
    claims.all_calls_have_ended: {
        "does not wait": ("began reduce_scatter", (WAIT, "pass\n")),
        "waits for the last one": ("began reduce_scatter", (WAIT, "self._on_their_way[-1].work.wait()\n")),
        "does not wait for the replicated": ("began all_reduce", (REPLICATED, REPLICATED[:-1] + ", async_op=True)")),
    },
    claims.gradients_are_averaged: {
        "takes the sum": ("the pieces of first, is 2 times too large", (ADD, "unit.add_gradient(part)")),
        "divides twice": ("the pieces of first, is 2 times too small", (START, START.replace("()", "() / 2"))),
        "adds nothing": ("the pieces of first, is None", (ADD, "pass")),
        "keeps its own part": (
            "the pieces of first, is still the rank's own",
            (RETURN, OWN_PART),
            (ADD, "unit.add_gradient(part)"),
        ),
        "forgets the replicated": ("norm.weight, which is replicated, is still", (REPLICATED, "continue")),
        "sums the replicated": ("norm.weight, which is replicated, is 2 times too large", (DIVIDE, "pass")),
        "averages the replicated twice": ("replicated, is 2 times too small", (DIVIDE, f"{DIVIDE}; {DIVIDE}")),
        "adds each twice": ("the pieces of first, is 2 times too large", (ADD, f"{ADD}; {ADD}")),
    },
}
RIGHT = {
    "gathers into parts": [(GATHER, GATHER_LIST)],
    "scatters parts": [(RETURN, SCATTER_LIST)],
    "waits for each gather": [
        (GATHER, f"{GATHER.replace('return', 'work =')}\n        work.wait()\n        return work")
    ],
    "shows it itself": [
        (GATHER, f"{GATHER.replace('return', 'work =')}\n        unit.use_full()\n        return work")
    ],
    "divides before they leave": [
        (START, START.replace("()", "() / dist.get_world_size()")),
        (ADD, "unit.add_gradient(part)"),
    ],
    "the replicated in one": [("for gradient in gradients:\n                dist", FLAT + "                dist")],
    "frees first": [(FREE, "pass"), (HIDE, f"{FREE}; {HIDE}")],
}
PART, WORLD = "part = torch.empty_like(unit.shard)", "dist.get_world_size()"
WIDE_PART = (PART, "part = unit.shard.new_empty(len(unit.full))[: len(unit.shard)]")
GRADIENT = f"part / {WORLD}"
GIVES_ZEROS = f"""{ADD}
        for unit in self.units:
            for p in unit.parameters:
                if not p.requires_grad: p.requires_grad_(); p.grad = torch.zeros_like(p); p.requires_grad_(False)"""
WRONG[None] |= {
    "resizes the tensor": ("the tensor stays as it is", (FREE, "unit.full.resize_(0)")),
    "resizes the tensor, both ways": (
        "whose memory is gone",
        (ROOM, "unit.full.resize_(unit.full.shape)"),
        (FREE, "unit.full.resize_(0)"),
    ),
    "lets nothing go": ("showed unit.full where its shard is due", (HIDE, "return")),
}
KEPT = f"{GATHER.replace('return', 'work =')}\n        work.wait()\n        unit.{{}}\n        return work"
FROM_A_COPY = f"""if hasattr(unit, "copy"):
            unit.full.copy_(unit.copy)
            return dist.barrier(async_op=True)
        {KEPT.format("copy = unit.full.clone()")}"""
WRONG[claims.layers_are_let_go] |= {
    "keeps a copy": ("Keep no copy", (GATHER, KEPT.format("copy = unit.full.clone()"))),
    "keeps the matrix": (
        "Keep no copy",
        (GATHER, KEPT.format("copy = [each.clone() for each in unit._whole(unit.full)]")),
    ),
}
WRONG[claims.layers_compute_with_all_of_their_weights] |= {
    "gathers once for all": ("step 1: the loss is", (GATHER, FROM_A_COPY)),
}
WRONG[claims.gradients_are_averaged] |= {
    "divides by two": ("on 3 ranks", (ADD, "unit.add_gradient(part / 2)")),
    "divides the replicated by two": ("on 3 ranks", (DIVIDE, "gradient.div_(2)")),
    "rounds the gradients": ("have been rounded", (GRADIENT, f"({GRADIENT}).to(unit.full.dtype).to(part.dtype)")),
    "zeros for what is frozen": ("the layer is frozen", (ADD, GIVES_ZEROS)),
}
WRONG[claims.weights_are_only_lent] = {
    "writes the weights back": (
        "has changed",
        (HIDE, f"unit.shard.copy_(unit.full.chunk({WORLD})[dist.get_rank()]); {HIDE}"),
    ),
    "rounds the shard": ("has changed", (ROOM, f"{ROOM}\n        unit.shard.copy_(unit.shard.to(unit.full.dtype))")),
}
WRONG[claims.gradients_take_the_memory_of_a_shard] = {
    "a part of something larger": (
        "a view of something larger",
        WIDE_PART,
        (ADD, f"unit.add_gradient(part.div_({WORLD}))"),
    ),
    "a part of the row": (
        "a view of something larger",
        (PART, f"row = unit.take_gradients() / {WORLD}\n        part = row.chunk({WORLD})[dist.get_rank()]"),
        (START, START.replace("unit.take_gradients()", "row.clone()")),
        (ADD, "unit.add_gradient(part)"),
    ),
    "gradients with a graph": ("or has a graph", (GRADIENT, f"({GRADIENT}).requires_grad_()")),
}
RIGHT |= {
    "divides in place": [(ADD, f"unit.add_gradient(part.div_({WORLD}))")],
    "a new tensor by name": [(PART, "part = unit.shard.new_zeros(unit.shard.shape)")],
}
BARRIER = "waits for all ranks at each gather"
RIGHT |= {BARRIER: [(GATHER, f"dist.barrier()\n        {GATHER}")]}
REMARKS = dict.fromkeys(("waits for each gather", BARRIER), "_gather waits for")
