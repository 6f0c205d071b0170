### INSTRUCTORS ONLY: this file hands in answers, so it is not in the student edition
"""Grade a class that hands in every wrong and every right answer of ``tests/check``.

    python benchmarks/grade_class.py FOLDER [--jobs 2] [--first N]

Writes their archives into FOLDER, with one that never ends, one that crashes, an empty and a huge
one, runs ``labkit grade``, and says how long that took, what took the time, and whether each wrong
answer failed with the finding that names its mistake, and each right one passed.
"""

from __future__ import annotations

import argparse
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path

from class_of_students import CRASHES, ENDLESS, Student, hand_in, students

from labkit import cli
from labkit.course.grades import Grade

HUGE_BYTES = 400 << 20


def write_class(folder: Path, first: int | None) -> dict[str, Student]:
    """Write the archives; return by name the students whose answers are known."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {f"student_{n:02}": student for n, student in enumerate(students(), 1)}
    known = dict(list(known.items())[:first])
    for name, student in known.items():
        hand_in(student, folder / f"{name}.zip")
    files = next(students()).files
    for name, code in {"endless": ENDLESS, "crashing": CRASHES}.items():
        hand_in(Student(files | {"labkit/dp.py": files["labkit/dp.py"] + code}, {}, set()), folder / f"{name}.zip")
    (folder / "empty.zip").write_bytes(b"")
    with zipfile.ZipFile(folder / "huge.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("labkit/dp.py", bytes(HUGE_BYTES))
    return known


def surprises(results: Path, known: dict[str, Student]) -> list[str]:
    """Return where a grade is not what the answer is known to be, a line each."""
    found = []
    for name, student in known.items():
        for result in (Grade.load(results / f"{name}.json") or Grade(name)).results:
            task, passed, finding = result.task, result.passed, " ".join(result.findings)
            if task in student.wrong and (passed or student.wrong[task] not in finding):
                found.append(f"{name} {task}: expected {student.wrong[task]!r}, found {finding or 'right'}")
            if task not in student.wrong and task not in student.in_doubt and not passed:
                found.append(f"{name} {task}: expected right, found {finding}")
    return found


def main() -> int:
    """Run the command; return 0 if every answer was judged as what it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--first", type=int, help="so many students alone")
    args = parser.parse_args()
    known = write_class(args.folder, args.first)
    began = time.monotonic()
    status = cli.main(["grade", str(args.folder), "--jobs", args.jobs])
    minutes = (time.monotonic() - began) / 60
    seconds = Counter[str]()
    for file in (args.folder / "grades" / "results").glob("*.json"):
        seconds.update({result.task: result.seconds for result in (Grade.load(file) or Grade("")).results})
    print(f"{minutes:.1f} minutes with --jobs {args.jobs}; seconds by task, of all archives together:")
    print(", ".join(f"{task} {s:.0f}" for task, s in seconds.most_common()))
    wrong = surprises(args.folder / "grades" / "results", known)
    print("\n".join(wrong) or "each wrong answer failed as it should, and each right one passed")
    return status or bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
