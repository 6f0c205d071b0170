"""Bring ``%ranks`` and ``%%ranks`` to a notebook: ranks that stay, and cells that run on them.

    %ranks 4 --link ethernet_1g     start four ranks; those that are there already stay
    %ranks                          who is there; ranks = %ranks gives ranks["x"], ranks.push(x=...)
    %ranks restart 2                an empty rank 2
    %ranks stop

    %%ranks                         the cell runs on every rank; what it names stays there
    %%ranks 0,2                     on some of them; also 0-2

``%load_ext labkit`` brings both, and so does importing :mod:`labkit.launch` in a notebook.
``%%rank 0``, ``%%rank[0,1]`` and ``%%px`` mean the same as ``%%ranks``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.core.error import UsageError
from IPython.core.getipython import get_ipython
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from labkit.base.notebook import display
from labkit.base.texts import listed
from labkit.cost import links
from labkit.ranks.notebook import cells, idle
from labkit.ranks.output.rank_tabs import cell_outputs
from labkit.ranks.processes.plan import LaunchPlan

COMPLETION_S = 0.5
PRESETS = {name.lower(): link for name, link in vars(links).items() if isinstance(link, links.Link)}

_HEAD = re.compile(r"%%(ranks|rank|px)\b[ \t]*(.*)")
_COMMANDS = "a number of ranks to start, or stop, or restart 2"


@magics_class
class RankMagics(Magics):
    """``%ranks`` and ``%%ranks`` of one shell, and the ranks that they speak to.

    ``plan(world_size, **options)`` checks the options of a launch, and raises as it does.
    """

    shell: Any

    def __init__(self, shell: Any, plan: Callable[..., LaunchPlan]):
        super().__init__(shell)
        self.plan = plan
        self._ranks: cells.Ranks | None = None

    @magic_arguments()
    @argument("words", nargs="*", help=_COMMANDS + "; with nothing: who is there")
    @argument("--link", help=f"an emulated link: {listed(PRESETS, 'or')}, or the name of a Link of yours")
    @argument("--backend", default="auto", help="auto, gloo or nccl")
    @argument("--threads", type=int, help="CPU threads per rank; by default the ranks share the cores")
    @argument("--timeout-s", type=float, default=120.0, help="seconds after which a cell is ended")
    @argument("--share-gpu", action="store_true", help="several NCCL ranks on one GPU, for correctness only")
    @no_var_expand
    @line_cell_magic
    def ranks(self, line: str, cell: str | None = None) -> cells.Ranks | None:
        """Start ranks that stay, say who is there, or end them; as %%ranks run a cell on them."""
        if cell is not None:
            self._run(line, cell)
            return None
        options = vars(parse_argstring(self.ranks, line))
        match options.pop("words"):
            case []:
                return self._there()
            case [number] if re.fullmatch(r"[+-]?\d+", number):
                return self._started(int(number), options)
            case ["stop"]:
                self._stop()
            case ["restart", *numbers]:
                ranks = self._there()
                some = _numbers(",".join(numbers), ranks.world_size, "%ranks restart")
                ranks.restart(*(some or range(ranks.world_size)))
            case words:
                raise UsageError(f"%ranks {' '.join(words)}: expected {_COMMANDS}; %ranks alone says who is there")
        return None

    def _started(self, world_size: int, options: dict[str, Any]) -> cells.Ranks:
        link = options["link"]
        options["link"] = link and self._link(link)
        try:
            idle_s, plan = idle.limit_s(), self.plan(world_size, **options)
        except (TypeError, ValueError) as error:
            raise UsageError(str(error).replace("launch: ", "%ranks: ", 1)) from None
        if self._ranks is not None and self._ranks.fits(plan):
            print("labkit: these ranks are there already, and keep their variables; %ranks restart empties them")
            return self._ranks
        lost = self._ranks.names() if self._ranks is not None else []
        self._stop()
        if lost:
            print(f"labkit: the ranks before these are ended, and with them {listed(lost)}")
        self._ranks = cells.Ranks(plan, idle_s)
        return self._ranks

    def _link(self, name: str) -> links.Link:
        own = self.shell.user_ns.get(name)
        link = own if isinstance(own, links.Link) else PRESETS.get(name.lower())
        if link is None:
            raise UsageError(
                f"%ranks: --link is {name!r}, expected {listed(PRESETS, 'or')}, or the name of a labkit.cost.Link "
                "that an earlier cell has made"
            )
        return link

    def _stop(self) -> None:
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.stop()

    def _there(self) -> cells.Ranks:
        if self._ranks is None:
            raise UsageError("no ranks are there: %ranks 4 starts four")
        return self._ranks

    def _run(self, line: str, cell: str) -> None:
        """Run a cell on the ranks that a line names, and show what they have displayed."""
        __tracebackhide__ = True
        ranks = self._there()
        on = _numbers(line, ranks.world_size)
        source = f"%%ranks {line}\n{cell}"
        ranks.autoreload = self._autoreload()
        try:
            run, shown = ranks.run_cell(source, self.shell.compile.cache(source), on)
        except BaseException as error:
            _show(getattr(error, "shown", {}), ranks.world_size)
            self._explain_name(error)
            if isinstance(error, KeyboardInterrupt):  # where in the lab it came says nothing to the reader
                shown_lines = ["KeyboardInterrupt", *getattr(error, "__notes__", [])]
                error._render_traceback_ = lambda: shown_lines  # type: ignore[attr-defined]
            raise
        _show(shown, ranks.world_size)
        if run.has_spans:
            display(run)

    def _autoreload(self) -> str:
        """Return the mode of the notebook's ``%autoreload``."""
        extension = self.shell.magics_manager.registry.get("AutoreloadMagics")
        reloader = extension and extension._reloader
        if not reloader or not reloader.enabled:
            return "0"
        return "3" if getattr(reloader, "autoload_obj", False) else "2" if reloader.check_all else "1"

    def _explain_name(self, error: BaseException) -> None:
        """Add to a NameError of a rank that the notebook has that name."""
        found = re.search(r"raised NameError: name '(\w+)' is not defined", str(error))
        if found and found[1] in self.shell.user_ns:
            name = found[1]
            error.add_note(
                f"{name!r} is in the notebook, not on the ranks: define it in a %%ranks cell, or send it: "
                f"ranks = %ranks, then ranks.push({name}={name})."
            )

    def prepare(self, lines: list[str]) -> list[str]:
        """Transform a cell for IPython: ``%%rank[0,1]`` and ``%%px`` become ``%%ranks``.

        Raises SyntaxError for one that ranks could not run, as IPython does for its own cells.
        """
        for i, line in enumerate(lines):
            if not line.startswith("%%"):  # above may stand other cell magics, such as %%needs
                break
            if not (head := _HEAD.match(line)):
                continue
            if head[1] != "ranks" and self.shell.find_cell_magic(head[1]):
                break
            source = "".join(lines)
            body = "".join(lines[i + 1 :])
            file = self.shell.compile.cache(source, self.shell.execution_count)
            cells.check_syntax(body if body.startswith("%%") else "#\n" * (i + 1) + body, file)
            return [*lines[:i], f"%%ranks {head[2]}".rstrip() + "\n", *lines[i + 1 :]]
        return lines

    prepare.has_side_effects = True  # type: ignore[attr-defined]  # a cell that is still being written is not checked

    @context_matcher(identifier="labkit.ranks", priority=1000)  # before jedi, which knows the notebook's names
    def complete(self, context: CompletionContext) -> SimpleMatcherResult:
        """Complete in a %%ranks cell what rank 0 knows, in place of what the notebook knows."""
        nothing = SimpleMatcherResult(completions=[])
        head, _, body = context.full_text.partition("\n")
        if self._ranks is None or context.cursor_line == 0 or not _HEAD.match(head):
            return nothing
        above = body.split("\n")[: context.cursor_line - 1]
        cursor = sum(len(line) + 1 for line in above) + context.cursor_position
        names = self._ranks.complete(body, cursor, COMPLETION_S)
        return SimpleMatcherResult(completions=[SimpleCompletion(name) for name in names], suppress=True)


def _show(shown: dict[int, list[dict[str, Any]]], world_size: int) -> None:
    for output in cell_outputs(shown, world_size):
        display(output)


def _numbers(text: str, world_size: int, magic: str = "%%ranks") -> list[int] | None:
    """Return the ranks that ``0,2``, ``0-2`` or ``[0, 2]`` names; None for nothing: all."""
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    numbers: set[int] = set()
    for word in words:
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        if ends is None or int(ends[1]) > int(ends[2] or ends[1]):
            raise UsageError(f"{magic} {text.strip()}: {word!r} is not a rank; expected something like 0, 0,2 or 0-2")
        numbers |= set(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    if missing := sorted(number for number in numbers if number >= world_size):
        there = "rank 0 alone is" if world_size == 1 else f"ranks 0 to {world_size - 1} are"
        raise UsageError(f"{magic} {text.strip()}: rank {missing[0]} is not there; {there}")
    return sorted(numbers) or None


def load(plan: Callable[..., LaunchPlan]) -> None:
    """Bring the magics to the notebook, once; ``plan(world_size, **options)`` plans ranks."""
    shell: Any = get_ipython()
    if (loaded := shell.magics_manager.registry.get(RankMagics.__name__)) is not None:
        loaded.plan = plan
        return
    magics = RankMagics(shell, plan)
    shell.register_magics(magics)
    shell.input_transformers_cleanup.append(magics.prepare)
    shell.Completer.custom_matchers.append(magics.complete)
