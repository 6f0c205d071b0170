"""Given code under ShardedModel: a parameter of which this rank has a piece, and its uses."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch._C._dynamo import eval_frame
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as torch_optimizer
from torch.utils import _pytree as pytree

from labkit.parallel.guard import NOT_AVERAGED, PIECE_OF, check_whole, wrapper_of

_NORMS = (torch.linalg.vector_norm, torch._foreach_norm)  # what torch's get_total_norm calls
_DATA: Any = torch.Tensor.data
_GRAD: Any = torch.Tensor.grad
_OF_MATRICES = {"Adafactor", "LARS", "LBFGS", "Lamb", "Muon", "SOAP", "Shampoo"}
_here = threading.local()  # .in_forward while a ShardedModel computes in this thread


class Whole(NamedTuple):
    """A parameter as it was before it was cut: its name in the model, and its dimensions.

    ``renew`` has the pieces of its unit lie in new memory.
    """

    name: str
    n_dim: int
    renew: Callable[[], object]


class Piece(nn.Parameter):
    """This rank's piece of a parameter, 1-D: a parameter's class while its unit is not whole.

    What treats each number by itself, as an optimizer does, may use it; new numbers, in place or
    as its ``data``, go into the unit's shard. Raises RuntimeError where it is used as if it were
    whole: in a forward pass, in a loss, as one of the gradients that have a norm together.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _in_forward() or torch.is_grad_enabled():
            return _use(func, args, kwargs or {})
        return _call(func, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        return _DATA.__get__(self)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        own, new = (f"{tuple(each.shape)} {each.dtype} on {each.device}" for each in (self, value))
        if own != new:
            _refuse(
                [self],
                f"is {own} here and cannot become {new}: give it a piece like it; convert or move a model before sharding it",
            )
        vars(self)[PIECE_OF].renew()  # who keeps the data of before has it still
        with torch.no_grad():
            self.copy_(value)

    @property
    def grad(self) -> torch.Tensor | None:
        wrapper: Any = wrapper_of(self)
        if wrapper is not None and wrapper._has_ready_gradients():
            _refuse([self], f"has no gradient yet, since {NOT_AVERAGED}")
        gradient = gradient_of(self)
        with torch._C.DisableTorchFunctionSubclass():
            return None if gradient is None else gradient.as_subclass(PieceGradient)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        _call(_GRAD.__set__, (self, value), {})

    def detach(self) -> torch.Tensor:
        if sys._getframe(1).f_globals is vars(nn.parameter):
            _refuse([self], _AS_WHOLE)  # as it is, a Parameter would be made of it
        return super().detach()

    def dim(self) -> int:
        """Return how many dimensions the whole parameter has: some decay matrices alone."""
        n_dim: int = vars(self)[PIECE_OF].n_dim
        return n_dim

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return self.dim()

    def __deepcopy__(self, memo: Any) -> NoReturn:
        refuse_copy()


class PieceGradient(torch.Tensor):
    """The gradient of a :class:`Piece`: a tensor, of which a GradScaler's verdict is shared."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = _call(func, args, kwargs or {})
        if func is torch._amp_foreach_non_finite_check_and_unscale_:
            dist.all_reduce(args[1], dist.ReduceOp.MAX)  # found_inf, of one element
        return result


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Have a step see plain parameters, which is faster. Refuse one that takes parameters whole."""
    pieces = _pieces_of(optimizer)
    if name := next(
        (each.__name__ for each in type(optimizer).__mro__ if pieces and each.__name__ in _OF_MATRICES), None
    ):
        raise RuntimeError(
            f"{name} looks at a parameter as a whole, and these are this rank's pieces of a ShardedModel's: take an optimizer "
            "that treats each number by itself, such as AdamW, or average_gradients with a ShardedOptimizer"
        )
    for piece in pieces:
        piece.__class__ = nn.Parameter


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    become_pieces(_pieces_of(optimizer))


def _pieces_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [each for group in optimizer.param_groups for each in group["params"] if PIECE_OF in vars(each)]


torch_optimizer.register_optimizer_step_pre_hook(_before_step)
torch_optimizer.register_optimizer_step_post_hook(_after_step)


def gradient_of(piece: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient that a piece has up to now, as a plain tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        gradient: torch.Tensor | None = _GRAD.__get__(piece)
        return None if gradient is None else gradient.as_subclass(torch.Tensor)


def become_pieces(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.__class__ = Piece


_COMPILED = "the module is compiled, which keeps the memory of weights that comes and goes here: shard the plain one"


def check_plain(module: nn.Module, layers: Iterable[nn.Module]) -> None:
    """Raise RuntimeError where one of these layers, or what contains it, is compiled."""
    outer = {*layers}
    if any(_is_compiled(each) and outer & {*each.modules()} for each in module.modules()):
        raise RuntimeError(_COMPILED)


def _is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None or "_orig_mod" in module._modules


def refuse_use(piece: torch.Tensor) -> NoReturn:
    """Raise RuntimeError for a use of ``piece`` outside its layer's forward pass."""
    _refuse([piece], _OUTSIDE)


class InPieces(nn.Module):
    """A module whose parameters are pieces. It is neither copied, pickled nor compiled.

    In its ``forward`` every use of a piece is refused, since a layer's own parameters are whole.
    """

    def __init_subclass__(cls) -> None:
        if "forward" in vars(cls):
            cls.forward = _of_whole_layers(cls.forward)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_copy()


def _of_whole_layers(forward: Any) -> Any:
    @functools.wraps(forward)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_compiled(self.module):
            raise RuntimeError(_COMPILED)
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(
                "torch.func cannot differentiate through a ShardedModel: call backward(), or take the plain model"
            )
        before, _here.in_forward = _in_forward(), True
        compiler = eval_frame.set_eval_frame(None)
        try:
            return forward(self, *args, **kwargs)
        finally:
            eval_frame.set_eval_frame(compiler)
            _here.in_forward = before

    run._torchdynamo_disable = True  # type: ignore[attr-defined]  # as torch.compiler.disable does, which takes seconds to load
    return run


def refuse_copy() -> NoReturn:
    """Raise RuntimeError for a copy of a ShardedModel, or of a part of it."""
    raise RuntimeError(
        "a ShardedModel cannot be copied: the copy's layers would not be gathered. To keep an average, keep one of each piece, "
        "[p.detach().clone() for p in model.parameters()], and copy_() it into the pieces to use it; full_parameters() "
        "returns whole copies"
    )


def _in_forward() -> bool:
    return getattr(_here, "in_forward", False)


def _call(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what ``func`` does to pieces or their gradients, number by number."""
    if func in _NORMS:
        _refuse(
            pytree.tree_leaves(args),
            "is this rank's piece, whose norm is not that of all gradients: call clip_grad_norm_ of the ShardedModel, or take "
            "full_parameters()",
        )
    if func is torch.autograd.grad:
        _refuse(pytree.tree_leaves(args), "has its gradient from backward() alone, which averages it: call that")
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    except (RuntimeError, ValueError, IndexError) as error:
        leaves = pytree.tree_leaves((args, kwargs))
        if not any(isinstance(each, Piece) for each in leaves):
            raise
        _refuse(leaves, f"{_OUTSIDE if _in_forward() else _AS_WHOLE} ({error})", error)


def _use(func: Any, args: Any, kwargs: Any) -> Any:
    """Do the same, unless what comes of it is for a forward pass, or for a loss."""
    pieces = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Piece)]
    if sys._getframe(2).f_globals.get("__name__") == DistributedDataParallel.__module__:  # it asks before it sends
        check_whole(pieces)
    result = _call(func, args, kwargs)
    name = getattr(func, "__name__", "")
    for_dtype_and_device = name.startswith("new_") or (name in ("to", "type_as") and not isinstance(args[0], Piece))
    if not for_dtype_and_device and _is_used(result, pieces):
        _refuse(pieces, _OUTSIDE)
    return result


def _is_used(result: Any, pieces: Sequence[Piece]) -> bool:
    """Return whether what comes of pieces is for a forward pass, or for a loss."""
    found = [y for y in pytree.tree_leaves(result) if isinstance(y, torch.Tensor) and all(y is not x for x in pieces)]
    if _in_forward():
        return bool(found) or isinstance(result, torch.Size) or type(result) is int
    return any(y.requires_grad and not y._is_view() for y in found)


_OUTSIDE = (
    "is used outside its own layer's forward pass, where it is this rank's piece, 1-D: name the class of the module that uses "
    "it in shard, so that they are one unit, or leave its layer's class out of shard; a penalty on weights is the "
    "optimizer's weight_decay"
)
_AS_WHOLE = "is this rank's piece, 1-D, and cannot be used as the whole one: use the plain model before it is sharded"


def _refuse(leaves: Sequence[Any], why: str, cause: Exception | None = None) -> NoReturn:
    names = [vars(each)[PIECE_OF].name for each in leaves if isinstance(each, Piece)]
    raise RuntimeError(f"{names[0] if names else 'a gradient'} of a ShardedModel {why}") from cause
