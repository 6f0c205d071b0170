"""Given code under the wrappers: what was wrapped is what runs, and no step comes before the mean.

A wrapper is made for the layers and parameters that a module has at that time. Should they change
later, gradients would be wrong on some rank without a word, so the wrapper asks its Guard before
each forward pass that it synchronises. All of it is local: nothing is sent.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from labkit.base.texts import listed

NOT_AVERAGED = (
    "the gradients of the last backward pass are not averaged yet: call finish_gradient_synchronization() after backward() "
    "and before the optimizer's step; if backward() was interrupted, restart the ranks"
)
_WRAPPER_OF = WeakTensorKeyDictionary()  # of a parameter, a weak reference to the wrapper that averages its gradient
_GUARDS: weakref.WeakSet[Guard] = weakref.WeakSet()


class Guard:
    """Notices where a wrapped module is no longer what it was.

        self._guard = Guard(self, module, parameters, handles)   # at the end of __init__
        self._guard.check_averaged()                             # in forward, while training
        self._guard.check()                                      # likewise
        self._guard.check_ready()                                # before gradients are averaged

    ``parameters`` are those whose gradients ``wrapper`` averages, ``handles`` those of the hooks
    that it has set on them. The wrapper's ``_has_ready_gradients()`` tells whether some are not
    averaged yet. A copy, as deepcopy and pickle make it, belongs to no wrapper: its check fails.
    """

    def __init__(
        self, wrapper: nn.Module, module: nn.Module, parameters: Iterable[torch.Tensor], handles: Sequence[Any]
    ):
        self.kind = type(wrapper).__name__
        self._wrapper = weakref.ref(wrapper)  # weak: a wrapper goes when nobody has it any more
        self._handles, named = handles, dict(module.named_parameters())
        self._layers = [(name, m, dict(m._modules), dict(m._parameters)) for name, m in module.named_modules()]
        self._contents = [each for _, m, _, _ in self._layers for each in (m._modules, m._parameters)]
        self._ids = self._ids_of_contents()
        self._names, self._parameters = [*named], [*named.values()]
        self._forms = [*map(self.form, self._parameters)]
        self._frozen = [(name, parameter) for name, parameter in named.items() if not parameter.requires_grad]
        self._averaged = {*parameters}
        for parameter in self._averaged:
            _WRAPPER_OF[parameter] = self._wrapper
        _GUARDS.add(self)

    def form(self, parameter: torch.Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
        """Return what must stay as it is of a parameter."""
        return parameter.shape, parameter.dtype, parameter.device

    def check(self) -> None:
        """Raise RuntimeError, by name, where what would run is not what was wrapped."""
        if not self._layers:
            raise RuntimeError(
                "this is a copy of a wrapper, and its gradients are not averaged, as a copy has no hooks: use it without "
                f"training (model.eval(), or under torch.no_grad()), or wrap its module: {self.kind}(model.module)"
            )
        if torch._C._current_graph_task_id() != -1:  # in a backward pass: a checkpoint's forward pass, run again
            return
        if self._ids_of_contents() != self._ids:
            for change in filter(None, (_first_change(*layer) for layer in self._layers)):
                self._refuse(*change)
        with torch._C.DisableTorchFunctionSubclass():  # or pieces of a ShardedModel's would look who asks
            forms = [*map(self.form, self._parameters)]
        if forms != self._forms:
            name, now, before = next(
                each for each in zip(self._names, forms, self._forms, strict=True) if each[1] != each[2]
            )
            self._refuse(f"{name} is {_words(now)}", f"it was {_words(before)}")
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                self._refuse(f"{name} requires a gradient", "it was frozen")
        if not all(handle.id in (handle.hooks_dict_ref() or ()) for handle in self._handles):
            self._refuse(f"a hook of the {self.kind} is gone", "each of its parameters had one")

    def _ids_of_contents(self) -> list[int]:
        """Return which children and parameters the layers have: quickly, as each step asks."""
        return [id(each) for content in self._contents for each in content.values()]

    def _refuse(self, now: str, before: str) -> None:
        raise RuntimeError(
            f"{now}, and {before} when the module was wrapped: its gradients would not be averaged. Make such a change first, "
            f"then wrap the module: delete this wrapper (del model), and make another {self.kind}"
        )

    def check_averaged(self, of: Iterable[torch.Tensor] | None = None, then: str = "") -> None:
        """Raise RuntimeError where gradients are not averaged yet: any, or one ``of`` these
        parameters. ``then`` is what else to say."""
        if self._has_ready_gradients() and (of is None or any(each in self._averaged for each in of)):
            raise RuntimeError(NOT_AVERAGED + then)

    def check_ready(self, where: str = "") -> None:
        """Raise RuntimeError where no backward pass, ``where``, has left gradients to average."""
        if not self._has_ready_gradients():
            raise RuntimeError(
                "there is no gradient to average: since the last finish_gradient_synchronization() no backward() through "
                f"this model has run{where}"
            )

    def _has_ready_gradients(self) -> bool:
        wrapper: Any = self._wrapper()
        return wrapper is not None and wrapper._has_ready_gradients()

    def __reduce__(self) -> Any:
        return _copied_guard, (self.kind,)


def _copied_guard(kind: str) -> Guard:
    guard = Guard.__new__(Guard)
    guard.kind, guard._layers, guard._wrapper = kind, [], lambda: None  # type: ignore[assignment]
    return guard


def _words(form: Any) -> str:
    shape, dtype, device = form
    return f"{tuple(shape)} {dtype} on {device}"


def _first_change(
    name: str, layer: nn.Module, children: dict[str, Any], parameters: dict[str, Any]
) -> tuple[str, str] | None:
    """Return in words a layer's first child or parameter that differs: as it is, and as it was."""
    for now, before in ((layer._modules, children), (layer._parameters, parameters)):
        for key in [*before, *(key for key in now if key not in before)]:
            there, was = now.get(key), before.get(key)
            if there is not was and not _is_allowed(there, was):
                whole = f"{name}.{key}" if name else key
                before_that = "it was not there" if was is None else f"it was a {type(was).__name__}"
                if there is None:
                    return f"{whole} is gone", before_that
                return f"{whole} is {'a new' if was is None else 'another'} {type(there).__name__}", before_that
        if now.keys() == before.keys() and [*now] != [*before]:
            return f"{name or 'the module'} has {listed(now)} in this order", f"in another, {listed(before)},"
    return None


def _is_allowed(there: Any, was: Any) -> bool:
    """Return whether it may stand where something else was: no parameter comes or goes with it.

    A tensor that is not a parameter is functional_call's, for one call.
    """
    if isinstance(there, torch.Tensor):
        return not isinstance(there, nn.Parameter)
    return not any(isinstance(each, torch.Tensor) or _has_parameters(each) for each in (there, was))


def _has_parameters(module: nn.Module | None) -> bool:
    return module is not None and any(True for _ in module.parameters())


# --- a parameter knows the living wrapper that it is in -------------------------------------------


def wrapper_of(parameter: torch.Tensor) -> nn.Module | None:
    """Return the living wrapper that averages this parameter's gradient, if there is one."""
    reference = _WRAPPER_OF.get(parameter)
    return reference() if reference else None


def check_unwrapped(module: nn.Module) -> None:
    """Raise ValueError for a module of which a living wrapper has a parameter already, and for a
    lazy layer."""
    if any(wrapper_of(parameter) for parameter in module.parameters()):
        gc.collect()  # a wrapper that nobody has any more does not count
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise ValueError(f"{name} has no shape yet, as its layer is lazy: run a batch through the model first")
        if (wrapper := wrapper_of(parameter)) is not None:
            kind = type(wrapper).__name__
            raise ValueError(
                f"{name} is in a {kind} already, which averages its gradient: wrap a module once. To wrap it again, delete that "
                f"{kind} first (del model), or build a new module as well"
            )


# --- a parameter knows that it is a piece ---------------------------------------------------------

PIECE_OF = "_labkit_piece_of"  # a Whole, of a parameter that ShardedModel has cut
_SHARDED = (
    "which has its own piece of each parameter on each rank, so nothing is to be averaged or taken from rank 0: its "
    "finish_gradient_synchronization() averages the gradients"
)


def check_whole(parameters: Iterable[torch.Tensor]) -> None:
    """Raise ValueError where one of these is a piece, of which each rank has another."""
    for each in parameters:
        if hasattr(each, PIECE_OF):
            raise ValueError(f"{getattr(each, PIECE_OF).name} is sharded already: it is in a ShardedModel, {_SHARDED}")


# --- no step before the mean ----------------------------------------------------------------------


def _check_averaged(optimizer: torch.optim.Optimizer, args: Sequence[Any], options: dict[str, Any]) -> None:
    """Raise RuntimeError where an optimizer would step with gradients that are not averaged yet.

    Each optimizer calls it before each step. One with a closure computes its gradients only then.
    """
    if any(each is not None for each in [*args[1:], options.get("closure")]):
        return
    for guard in [*_GUARDS]:
        guard.check_averaged(parameter for group in optimizer.param_groups for parameter in group["params"])


register_optimizer_step_pre_hook(_check_averaged)
