"""The notebooks and their words belong together: nothing is unused, nothing is missing."""

import ast
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.base.course import course
from labkit.base.units import size_of
from labkit.base.words import fields_of
from labkit.cost import Link, memory, parameter_server_s, ring_all_reduce_s
from labkit.guesses.feedback import TERMS
from labkit.stats import Interval, conclusion

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
QUESTIONS, FIGURES, CONCLUSIONS = (
    tomllib.loads((NOTEBOOKS / f"{file}.toml").read_text(encoding="utf-8"))
    for file in ("questions", "figures", "conclusions")
)


def calls(function: str) -> Iterator[ast.Call]:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                source = re.sub(r"^%.*$", "", "".join(cell["source"]), flags=re.MULTILINE)
                for node in ast.walk(ast.parse(source)):
                    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == function:
                        yield node


def name_of(call: ast.Call) -> str | None:
    (first, *_) = call.args
    return first.value if isinstance(first, ast.Constant) else None


def test_each_question_is_asked_once_and_each_that_is_asked_is_there():
    assert Counter(map(name_of, calls("guess"))) == dict.fromkeys(QUESTIONS, 1)
    assert all(len(call.args) == 1 for call in calls("guess"))  # its words are in the file alone


def test_each_figure_is_shown_once_and_each_that_is_shown_is_there():
    assert Counter(filter(None, map(name_of, calls("show")))) == dict.fromkeys(FIGURES, 1)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_a_kind_axes_and_an_alt_text_that_is_a_sentence(name):
    figure = FIGURES[name]
    axes = {"bars": {"y"}, "parts": {"y"}, "curve": {"x", "y"}, "curves": {"x", "y"}, "timeline": {"x"}}
    assert axes.get(figure["kind"], set()) <= figure.keys()
    assert re.fullmatch(r"[A-Z0-9].{15,}\.", figure["alt"], re.DOTALL)


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_is_a_sentence_and_what_a_guess_forgets_is_a_term(name):
    question = QUESTIONS[name]
    assert "?" in question["text"]
    for each in (*question.get("wrong", {}).values(), *question.get("parts", {}).values()):
        assert each["phrase"] and each.get("forgets", "host") in TERMS


def test_each_answer_gives_the_numbers_that_the_words_need():
    """By the keywords of each reveal, whose guess is looked up where it was asked."""
    question_of = {}
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        code = (c["source"] for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code")
        question_of |= dict(re.findall(r"(\w+) = guess\(\"(\w+)\"", "\n".join(map("".join, code))))
    answered = list(calls("reveal"))
    assert answered
    for call in answered:
        entry = QUESTIONS[question_of[call.args[0].id]]
        models = entry.get("wrong", {}) | entry.get("parts", {})
        needed = {name for name, each in models.items() if "would_be" not in each}
        given = {keyword.arg for keyword in call.keywords}
        assert None in given or needed <= given <= needed | {*fields_of(entry)}


def test_a_value_in_the_file_is_what_the_arithmetic_of_its_notebook_gives():
    link = Link(3e-3, 12.5e6)
    server, ring = parameter_server_s(2**18, 8, 3e-3, 12.5e6), ring_all_reduce_s(2**18, 8, 3e-3, 12.5e6)
    right = {
        "server_ratio": {"no_latency": 8, "one_by_one": 14 * link.message_s(2**18) / ring, "idle_cpus": server / ring},
        "dp_strong": {"free": 2, "once": 0.064 / (0.032 + ring_all_reduce_s(2**18, 2, 3e-3, 12.5e6))},
        "dp_step_64": {"latency": 504 * link.latency_s, "bytes": 504 * 2**16 / 64 / link.bytes_per_s}
        | {"computing": 0.001, "free": 0.001},
    }
    for name, numbers in ((name, numbers) for name, numbers in right.items() if name in QUESTIONS or not course().file):
        question = QUESTIONS[name]
        given = {key: each["would_be"] for key, each in (question["wrong"] | question.get("parts", {})).items()}
        size = size_of(question.get("unit", ""))
        assert given == pytest.approx({key: number / size for key, number in numbers.items()}, rel=0.005), name


@pytest.mark.skipif("largest" not in QUESTIONS and bool(course().file), reason="this course leaves out 07")
def test_the_words_about_gpt_3_have_the_numbers_of_the_table():
    total = memory.memory_table().set_index("model").total
    fields = {name: text.rstrip(" GiB.").split()[-1] for name, text in QUESTIONS["largest"]["choices"].items()}
    near = {name: float(number) for name, number in fields.items() if name != "175B"}
    assert near == pytest.approx({name: total[name] for name in near}, rel=0.03)


# --- conclusions ----------------------------------------------------------------------------------


def test_each_conclusion_is_drawn_by_one_cell_and_each_that_is_drawn_is_there():
    assert Counter(map(name_of, calls("conclude"))) == dict.fromkeys(CONCLUSIONS, 1)


@pytest.mark.parametrize("name", CONCLUSIONS)
def test_a_conclusion_has_three_different_sentences_whose_numbers_its_cell_gives(name):
    entry = CONCLUSIONS[name]
    assert entry.keys() == {"above", "below", "unclear"} and len({*entry.values()}) == 3
    for text in entry.values():
        assert re.fullmatch(r"[A-Z0-9{].+[.?]", text)
        assert all(len(sentence.split()) < 25 for sentence in re.split(r"(?<=[.?:;]) ", text))
    (call,) = (call for call in calls("conclude") if name_of(call) == name)
    given = {keyword.arg for keyword in call.keywords}
    assert given | {"found", "than"} == {*fields_of(entry)} | {"found", "than"}


@pytest.mark.parametrize("name", CONCLUSIONS)
def test_the_sentence_that_comes_is_the_one_that_a_made_up_run_decides(name, monkeypatch):
    """Around what it is compared with, up to touching it, no run decides."""
    monkeypatch.chdir(NOTEBOOKS)
    monkeypatch.delenv("LABKIT_STATIC", raising=False)
    numbers = dict.fromkeys({*fields_of(CONCLUSIONS[name])} - {"found", "than"}, 3.25)
    ends = {"above": [(1.1, 1.3)], "below": [(0.7, 0.9)], "unclear": [(0.9, 1.1), (1.0, 1.2), (0.8, 1.0)]}
    for branch, low, high in ((branch, *each) for branch, intervals in ends.items() for each in intervals):
        for than in (1.0, 0.25):
            found = Interval(than * (low + high) / 2, than * low, than * high)
            fields = {"found": found.text(), "than": f"{than:g}"} | dict.fromkeys(numbers, "3.25")
            assert str(conclusion(name, found, than=than, **numbers)) == filled(CONCLUSIONS[name][branch], fields)


def filled(text: str, fields: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda field: fields[field[1]], text)
