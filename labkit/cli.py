"""Run the ``labkit`` command, also ``python -m labkit``: a subcommand loads what it needs."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from labkit import __version__
from labkit.base.course import CourseError, course
from labkit.base.lab import lab, outside, start_again_in_own
from labkit.base.texts import listed
from labkit.course.assignments import LAYOUTS

_VISIBILITIES = ("visible", "after_due_date", "after_published", "hidden")  # of Gradescope


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv``, by default this process's; return the exit status.

    It is 0 if all is well, 1 if something is not, and 2 for a wrong call.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a stream of the caller's own, or none
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # ✓ where there is only ASCII
    if argv is None:
        start_again_in_own()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _train(arguments[1:]) if arguments[:1] == ["train"] else _run(arguments)
    except ModuleNotFoundError as error:
        if (error.name or "labkit").startswith("labkit"):
            raise
        return _refuse(f"{arguments[0]}: {error}: in the lab's folder, pip install '.[lab]' brings it")
    except CourseError as error:
        return _refuse(f"{arguments[0]}: {error}")


def _parser() -> argparse.ArgumentParser:
    """Return the parser of every command but ``train``, which has a command line of its own."""
    parser = argparse.ArgumentParser(prog="labkit", description="A course lab on distributed training.")
    parser.add_argument("--version", action="version", version=f"labkit {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_students(commands)
    _add_instructors(commands)
    return parser


def _add_students(commands: argparse._SubParsersAction) -> None:
    _add(commands, "doctor", _doctor, "find out whether this machine is ready for the lab")
    command = _add(
        commands, "check", _check, "judge your answers as they are on disk, and say what is right and what is wrong"
    )
    command.add_argument("tasks", nargs="*", metavar="TASK", help="such as dp.1; by default all tasks")
    command.add_argument("--hint", type=int, choices=(1, 2, 3), help="give a hint too; 2 and 3 say more than 1")
    command.add_argument(
        "--from", dest="archive", metavar="FILE", type=Path, help="judge the answers in an archive from labkit submit"
    )
    command = _add(commands, "submit", _submit, "pack what you hand in, and preview what a grader will see")
    command.add_argument("--out", metavar="FILE", type=Path, help="by default submission.zip in the lab's folder")
    command.add_argument(
        "--layout", choices=LAYOUTS, help="how the archive is laid out; by default as the course has it, or labkit"
    )
    _add_course(command)
    command.add_argument("--only", metavar="TASKS", default="", help="such as dp, or dp.1,pipe")
    command.add_argument("--name", default="", help="NETID_First_Last, for the name of cos568's report")
    command.add_argument("--with-guesses", action="store_true", help="pack your guesses too")
    command.add_argument(
        "--notebook", metavar="FILE", type=Path, action="append", default=[], help="pack a notebook of your own too"
    )
    command = _add(
        commands, "report", _report, "write an assignment's report from your notebook, as you ran and saved it"
    )
    command.add_argument("notebook", metavar="NOTEBOOK", help="its number or name, such as 05")
    command.add_argument("--out", metavar="FOLDER", type=Path, help="where to write it; by default the lab's runs/")
    command.add_argument("--no-pdf", dest="pdf", action="store_false", help="write the HTML only")
    commands.add_parser("train", help="train a model: see labkit train --help")


def _add_instructors(commands: argparse._SubParsersAction) -> None:
    command = _add(commands, "student", _student, "write the student edition of this repository")
    command.add_argument("directory", metavar="DIR", help="a new or empty directory, outside the repository")
    _add_course(command)
    command = _add(commands, "plan", _plan, "print what each notebook asks, needs and takes, and by when, as Markdown")
    _add_course(command)
    command = _add(commands, "site", _site, "write static pages: explorers that play, and the notebooks to read")
    command.add_argument("directory", metavar="DIR", type=Path, help="a new or empty directory")
    _add_course(command)
    command = _add(commands, "grade", _grade, "grade what a class handed in: tables, and a page for each student")
    command.add_argument(
        "folder", metavar="FOLDER", type=Path, help="archives from labkit submit, also as Moodle or Canvas names them"
    )
    command.add_argument("--out", metavar="DIR", type=Path, help="where to write; by default FOLDER/grades")
    command.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="how many archives to grade at a time; by default %(default)s"
    )
    command.add_argument("--limit", type=float, metavar="SECONDS", help="time limit for a task; by default 180")
    _add_course(command)
    command.add_argument("--only", metavar="NAME", default="", help="grade one again, by the name in grades.csv")
    command.add_argument("--wide", action="store_true", help="write grades_wide.csv too: a row for each student")
    command = _add(commands, "autograder", _autograder, "write an autograder for Gradescope")
    command.add_argument("out", metavar="OUT.zip", type=Path, help="what you upload there")
    command.add_argument(
        "--minutes", type=float, default=10, help="what you set as the time limit there; by default %(default)s"
    )
    _add_course(command)
    command.add_argument("--visibility", choices=_VISIBILITIES, default="visible", help="when students see results")
    command = _add(commands, "guesses", _guesses, "show what a class guessed: a page with a histogram a question")
    command.add_argument("folder", metavar="FOLDER", type=Path, help="archives from labkit submit --with-guesses")
    command.add_argument("--out", metavar="FILE", type=Path, help="by default FOLDER/guesses.html")


def _run(arguments: Sequence[str]) -> int:
    """Run a command that :func:`_parser` knows."""
    args = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = args.run
    if run in (_check, _submit, _student, _site, _report, _plan) and (sentence := outside()):
        print(f"labkit: {sentence}", file=sys.stderr)
    try:
        status = run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        return 1
    return status


def _nobody_reads() -> bool:
    """Return whether nobody reads the output, as after head; the rest then goes nowhere."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    if gone := bool(output.poll(0)):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return gone


def _add(commands: argparse._SubParsersAction, name: str, run: Callable, text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + "."
    )
    command.set_defaults(run=run)
    return command


def _add_course(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--course", metavar="FILE", type=Path, help="what the course is; by default course.toml in the lab's folder"
    )


def _doctor(args: argparse.Namespace) -> int:
    from labkit.course.doctor import doctor

    diagnosis = doctor()
    print(diagnosis)
    return 0 if diagnosis.healthy else 1


def _check(args: argparse.Namespace) -> int:
    from labkit.todo import TASKS

    if unknown := [task for task in args.tasks if task not in TASKS]:
        return _refuse(f"check: unknown task {unknown[0]!r}, expected one of: {', '.join(TASKS)}")
    if args.hint and not args.tasks:
        return _refuse(f"check: --hint {args.hint} is for which task? Name it, as in: check dp.1 --hint {args.hint}")
    if args.archive and args.hint:
        return _refuse("check: --hint is for your own files, not for an archive: leave out one of --hint and --from")
    if args.archive:
        return _check_archive(args)
    from labkit.check import check

    passed = True
    for task in args.tasks or course().tasks:
        result = check(task, hint=args.hint)
        print(result, flush=True)
        passed &= result.passed
    return 0 if passed else 1


def _check_archive(args: argparse.Namespace) -> int:
    from labkit.course.grading import check_archive

    try:
        return 0 if check_archive(args.archive, args.tasks, _say) else 1
    except (ValueError, OSError, RuntimeError) as error:
        return _refuse(f"check: {error}")
    except KeyboardInterrupt:
        return 130


def _submit(args: argparse.Namespace) -> int:
    from labkit.course.submission import SubmitRequest, submit

    taught = course(args.course)
    wanted = [each.strip() for each in args.only.split(",") if each.strip()]
    groups = sorted({task.partition(".")[0] for task in taught.tasks})
    if unknown := [each for each in wanted if each not in (*taught.tasks, *groups)]:
        expected = ", ".join((*groups, *taught.tasks))
        return _refuse(f"submit: there is no task {unknown[0]!r}, expected some of: {expected}")
    tasks = [task for task in taught.tasks if not wanted or task in wanted or task.partition(".")[0] in wanted]
    out, layout = args.out or lab().folder / "submission.zip", args.layout or taught.layout
    try:
        request = SubmitRequest(
            out, taught, layout, tasks, args.name, args.with_guesses, [path.resolve() for path in args.notebook]
        )
        return 0 if submit(request, _say) else 1
    except (ValueError, OSError, RuntimeError) as error:
        return _refuse(f"submit: {error}")
    except KeyboardInterrupt:
        print("\ninterrupted: nothing was written", file=sys.stderr)
        return 130


def _grade(args: argparse.Namespace) -> int:
    from labkit.course.downloads import GRADES
    from labkit.course.grading import Request, grade_folder
    from labkit.course.judge import LIMIT_S

    if args.jobs < 1 or (args.limit is not None and not args.limit > 0):
        return _refuse("grade: --jobs is at least 1, and --limit more than 0 seconds")
    out = args.out or args.folder / GRADES
    taught, limit_s = course(args.course), args.limit or LIMIT_S
    try:
        complete = grade_folder(Request(args.folder, taught, out, args.jobs, limit_s, args.only, args.wide), _say)
    except (ValueError, OSError) as error:
        return _refuse(f"grade: {error}")
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on from here", file=sys.stderr)
        return 130
    print(f"\n{out / 'grades.csv'} has the grades, {out / 'students'} a page for each student")
    return 0 if complete else 1


def _guesses(args: argparse.Namespace) -> int:
    from labkit.course.class_guesses import write_page
    from labkit.course.downloads import GUESSES_PAGE

    out = args.out or args.folder / GUESSES_PAGE
    try:
        complete = write_page(args.folder, out, _say)
    except (ValueError, OSError) as error:
        return _refuse(f"guesses: {error}")
    print(f"{out} has the class's guesses")
    return 0 if complete else 1


def _autograder(args: argparse.Namespace) -> int:
    from labkit.course.autograder import Settings, write_autograder

    try:
        write_autograder(args.out, course(args.course), Settings(args.minutes, args.visibility))
    except (ValueError, OSError) as error:
        return _refuse(f"autograder: {error}")
    print(f"{args.out} is for Gradescope; docs/instructor.md says what to choose there")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


def _student(args: argparse.Namespace) -> int:
    from labkit.course.student import write_student_edition

    try:
        edition = write_student_edition(args.directory, taught=course(args.course))
    except (ValueError, OSError) as error:
        return _refuse(f"student: {error}")
    print(f"The student edition is in {args.directory}, with these tasks to do: {', '.join(edition.tasks)}")
    if edition.given:
        print(f"Given, filled in and not graded: {', '.join(edition.given)}")
    for task, others in edition.given_away.items():
        print(f"{task} is given, and gives {listed(others)} away")
    return 0


def _plan(args: argparse.Namespace) -> int:
    from labkit.course.leave_out import kept
    from labkit.course.plan import plan

    taught = course(args.course)
    print(plan(taught, lab().folder, kept(taught, lab().notebook_names)), end="")
    return 0


def _site(args: argparse.Namespace) -> int:
    from labkit.course.site import write_site
    from labkit.course.student import is_student_edition

    try:
        size_bytes = write_site(args.directory, course(args.course), _say)
    except (ValueError, OSError) as error:
        return _refuse(f"site: {error}")
    print(f"The site is in {args.directory}, {size_bytes / 1e6:.1f} MB: open {args.directory / 'index.html'}")
    if not is_student_edition():
        print("It shows solutions. For students, write that of the student edition: docs/instructor.md says how.")
    return 0


def _report(args: argparse.Namespace) -> int:
    from labkit.course.report import write_report

    try:
        written = write_report(args.notebook, args.out, args.pdf)
    except (ValueError, OSError) as error:
        return _refuse(f"report: {error}")
    print(f"The report is in {listed(map(os.path.relpath, written.files))}")
    for note in written.notes:
        print(note)
    return 0


def _train(arguments: list[str]) -> int:
    from labkit.train import main as train

    train(arguments, prog="labkit train")
    return 0


def _refuse(message: str) -> int:
    print(f"labkit {message}", file=sys.stderr)
    return 2
