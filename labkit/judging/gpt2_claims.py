"""What must hold of pipe.4, GPT-2 in a Pipe. Each claim is a function: its docstring says what must hold, and it gives None
where that holds, else what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable

from labkit.judging import gpt2_probes as probes
from labkit.judging import pipe_claims
from labkit.judging.evidence import Evidence, NotTried, holds
from labkit.judging.in_ranks import try_in_ranks

Claim = Callable[[Evidence], str | None]

PREPARED = (
    f"a GPT-2 of {probes.BLOCKS} blocks on {', '.join(probes.DEVICES)}, prepared with split_size={probes.SPLIT_SIZE}"
)
CALLED = f"{PREPARED} and called with {probes.ROWS} rows"


def gather() -> Evidence:
    """What became of a GPT-2 that the answer has prepared."""
    first = pipe_claims.FIRST | {"pipe.3": _pipes}
    (found,) = try_in_ranks(probes.probe_gpt2, first, world_size=1, init=False)
    return Evidence(found)


def _pipes() -> bool:
    evidence = Evidence(pipe_claims.probes.probe_pipe({}))
    return all(holds(claim, evidence) for claim in pipe_claims.CLAIMS)


def the_model_itself_is_given_back(evidence: Evidence) -> str | None:
    """prepare_pipeline_parallel changes the model that it is given, and gives it back."""
    if (found := evidence["returned"]) != "the model":
        return f"{PREPARED}: what came back is {found}, expected the model itself: whoever has it is to go on with it"
    return None


def the_blocks_are_not_copied(evidence: Evidence) -> str | None:
    """The blocks that run are the model's own, not copies."""
    _only_where(the_model_itself_is_given_back, evidence)
    if copies := [call for call in evidence["calls"] if call.block is None]:
        return (
            f"{CALLED}: {len(copies)} times a block was called that is not the model's. An optimizer has the parameters of the "
            "model, so put the blocks themselves into the nn.Sequential"
        )
    return None


def the_blocks_run_in_workers(evidence: Evidence) -> str | None:
    """The blocks run in the worker threads of a Pipe."""
    _only_where(the_blocks_are_not_copied, evidence)
    if here := [call.block for call in evidence["calls"] if not call.thread]:
        return (
            f"{CALLED}: block {here[0]} ran in the thread that called the model, not in that of a worker. GPT-2 calls what it "
            "finds in gpt2.transformer.h: that has to lead to the Pipe"
        )
    return None


def micro_batches_have_split_size_rows(evidence: Evidence) -> str | None:
    """The blocks are given micro-batches of split_size rows."""
    _only_where(the_blocks_run_in_workers, evidence)
    for number in range(probes.BLOCKS):
        rows = [call.rows for call in evidence["calls"] if call.block == number]
        if rows and set(rows) != set(probes.MICRO_BATCHES):
            return (
                f"{CALLED}: block {number} was given {rows} rows, expected {probes.MICRO_BATCHES}. Pipe takes split_size, the "
                "number of rows of a micro-batch"
            )
    return None


def each_block_runs_once_for_each_micro_batch(evidence: Evidence) -> str | None:
    """Each block is called once for each micro-batch."""
    _only_where(micro_batches_have_split_size_rows, evidence)
    for number in range(probes.BLOCKS):
        times = sum(call.block == number for call in evidence["calls"])
        if times != (expected := len(probes.MICRO_BATCHES)):
            return (
                f"{CALLED}: block {number} was called {times} times for {expected} micro-batches. All blocks go into the Pipe, "
                "each once; and GPT-2 is to find one thing in gpt2.transformer.h, which stands for all of them"
            )
    return None


def each_device_has_a_worker(evidence: Evidence) -> str | None:
    """The blocks of a device run in one worker, those of another device in another one."""
    _only_where(each_block_runs_once_for_each_micro_batch, evidence)
    by_thread: dict[str, list[int]] = {}
    for call in evidence["calls"]:
        by_thread.setdefault(call.thread, []).append(call.block)
    found = sorted(sorted(set(blocks)) for blocks in by_thread.values())
    if found != probes.SHARES:
        return (
            f"{CALLED}: the workers had the blocks {found}, expected {probes.SHARES}. A block's device is in the WithDevice "
            "around it: put what is in gpt2.transformer.h into the nn.Sequential as it is"
        )
    return None


def the_blocks_stay_in_order(evidence: Evidence) -> str | None:
    """A micro-batch goes through the blocks in their order."""
    _only_where(each_block_runs_once_for_each_micro_batch, evidence)
    # The last micro-batch alone has fewer rows than the others, so its calls can be told apart.
    order = [call.block for call in evidence["calls"] if call.rows == probes.MICRO_BATCHES[-1]]
    if order != sorted(order):
        return f"{CALLED}: its last micro-batch went through the blocks in the order {order}"
    return None


def output_and_gradients_stay(evidence: Evidence) -> str | None:
    """Output and gradients are what they were before."""
    _only_where(the_blocks_stay_in_order, evidence)
    if differs := evidence["differs"]:
        advice = (
            "Let autograd follow the hidden states into the Pipe"
            if "gradient" in differs
            else "Embeddings, layer norm and output layer are GPT-2's own business: into the Pipe go the blocks, and nothing else"
        )
        return f"{CALLED}: {differs}. {advice}"
    return None


def parameters_keep_their_names(evidence: Evidence) -> str | None:
    """The parameters have the names that they had, so that what was saved can be loaded."""
    _only_where(output_and_gradients_stay, evidence)
    found, expected = evidence["names"]
    if found != expected:
        other = next((name for name in found if name not in expected), "another order")
        was = next((name for name in expected if name not in found), "another one")
        return (
            f"{PREPARED}, has {other} in its state dict, where there was {was}. PipedBlocks keeps names: put it into "
            "gpt2.transformer.h as it is, without a list around it; and modules without names into nn.Sequential, which "
            "numbers them"
        )
    return None


def generation_stays(evidence: Evidence) -> str | None:
    """With a mask and a cache, as in generation, the output is what it was before."""
    _only_where(output_and_gradients_stay, evidence)
    if differs := evidence["generation differs"]:
        return (
            f"{PREPARED}: {differs}. A Pipe takes hidden states alone, and would leave out what else GPT-2 gives to its blocks. "
            "PipedBlocks looks after that"
        )
    return None


# --- helpers ---------------------------------------------------------------------------------------------------------

NOT_YET: dict[Claim, str] = {
    the_model_itself_is_given_back: "the model itself is not given back yet",
    the_blocks_are_not_copied: "copies of the blocks run",
    the_blocks_run_in_workers: "the blocks do not run in workers yet",
    micro_batches_have_split_size_rows: "micro-batches do not have split_size rows yet",
    each_block_runs_once_for_each_micro_batch: "not each block runs once for each micro-batch yet",
    the_blocks_stay_in_order: "the blocks are not in order yet",
    output_and_gradients_stay: "output and gradients are not right yet",
}


def _only_where(claim: Claim, evidence: Evidence) -> None:
    """Raises NotTried where what the claim says does not hold: what follows would only say it again."""
    evidence["returned"]  # raises what is said once: why there is no evidence at all
    if not holds(claim, evidence):
        raise NotTried(f"not tried, because {NOT_YET[claim]}")


CLAIMS = (  # causes before what follows from them
    the_model_itself_is_given_back,
    the_blocks_are_not_copied,
    the_blocks_run_in_workers,
    micro_batches_have_split_size_rows,
    each_block_runs_once_for_each_micro_batch,
    each_device_has_a_worker,
    the_blocks_stay_in_order,
    output_and_gradients_stay,
    parameters_keep_their_names,
    generation_stays,
)
