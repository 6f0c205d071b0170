"""The state of the schedule explorer as text: it comes back as it was; what is wrong is named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_in_node import NODE, in_node

from labkit.explore.schedules.orders import schedule_form
from labkit.explore.schedules.state import SCHEDULES, Choice, State, StateError, parse


@st.composite
def states(draw):
    n = draw(st.integers(1, 16))
    number = st.floats(0.001, 1000)
    times = st.one_of(st.tuples(number), st.tuples(*[number] * n))
    plain = st.sampled_from([Choice(name) for name in SCHEDULES if name != "interleaved"])
    choice = plain | st.builds(Choice, st.just("interleaved"), st.integers(1, 4))
    input_grad = draw(times)
    return State(
        choice=draw(choice),
        other=draw(st.none() | choice),
        n_ranks=n,
        n_micro=draw(st.integers(1, 64)),
        forward=draw(times),
        input_grad=input_grad,
        weight_grad=draw(st.just(input_grad) | times),
        hop=draw(st.floats(0, 1000).map(abs)),  # -0.0 is no hop either
        cap=draw(st.none() | number),
    )


@given(states())
def test_any_state_comes_back_from_its_text_as_it_was(state):
    assert parse(str(state)) == state


def test_what_is_left_out_is_the_default():
    assert parse("") == parse("1f1b n=4 m=8 F=1 B=2") == State()
    assert parse("n=2") == State(n_ranks=2)
    assert parse("n=2 vs gpipe") == State(other=Choice("gpipe"), n_ranks=2)
    assert parse("zb-v W=3") == State(Choice("zb-v"), weight_grad=(3.0,))


WRONG = [
    ("2f2b n=4", "2f2b", "a schedule: forward, gpipe, 1f1b"),
    ("1f1b n=4 k=8", "k=8", "one of n=, m=, v=, F=, B=, I=, W=, hop=, cap="),
    ("1f1b gpipe", "gpipe", "or vs and a second schedule"),
    ("1f1b n=", "n=", "a whole number from 1 to 16, such as n=4"),
    ("1f1b n=17", "n=17", "from 1 to 16"),
    ("1f1b n=²", "n=²", "from 1 to 16"),
    ("1f1b m=0", "m=0", "from 1 to 64"),
    ("1f1b m=2.5", "m=2.5", "a whole number"),
    ("1f1b F=nan", "F=nan", "a number from 0.001 to 1000, or one per rank, such as F=1,1,1,2"),
    ("1f1b F=1,,2", "F=1,,2", "one per rank"),
    ("1f1b F=1e9", "F=1e9", "to 1000"),
    ("1f1b B=0", "B=0", "a number from 0.002 to 2000"),
    ("1f1b hop=-1", "hop=-1", "a number from 0 to 1000, such as hop=0.5"),
    ("1f1b hop=1,2", "hop=1,2", "such as hop=0.5"),
    ("1f1b n=3  F=1,2", "F=1,2", "one for each of the n=3 ranks, not 2"),
    ("1f1b B=2 W=1", "W=1", "B, or I and W, not both"),
    ("1f1b m=4 m=8", "m=8", "m only once"),
    ("1f1b v=2", "v=2", "v= only after interleaved"),
    ("v=2", "v=2", "v= only after interleaved"),
    ("vs gpipe", "vs", "a schedule: forward"),
    ("gpipe vs 1f1b vs zb-v", "vs", "two schedules at most"),
    ("gpipe vs n=4", "n=4", "a schedule: forward"),
    ("gpipe vs ", "", "a schedule: forward"),
]


@pytest.mark.parametrize(("text", "word", "expected"), WRONG)
def test_what_does_not_parse_is_named_with_what_was_expected(text, word, expected):
    with pytest.raises(StateError) as caught:
        parse(text)
    named, _, rest = str(caught.value).partition(": expected ")
    assert named == (repr(word) if word else "the end") and expected in rest


@given(st.text())
def test_any_text_parses_or_is_refused(text):
    try:
        assert parse(str(parse(text))) == parse(text)
    except StateError as error:
        assert ": expected " in str(error)


READ = """
import { readState, stateOf } from "BROWSER/schedule_state.js";
return given.texts.map((text) => {
  try { return stateOf(readState(text, given.form)); } catch ({ message }) { return message; }
});
"""


def read_in_python(text):
    try:
        return str(parse(text))
    except StateError as error:
        return str(error)


@pytest.mark.skipif(NODE is None, reason="no node on this machine")
def test_a_file_reads_a_text_as_python_does_and_refuses_it_in_the_same_words():
    texts = [
        "",
        " 1F1B  N=2 m=3\tvs ZB-V",
        "zb-v W=3",
        "interleaved v=3 vs interleaved",
        "n=2 F=.5,1e1 I=1. cap=2 hop=0",
    ]
    texts += [text for text, *_ in WRONG]

    @settings(max_examples=50, derandomize=True, database=None)
    @given(states())
    def draw(state):
        texts.append(str(state))

    draw()
    found = in_node(READ, {"texts": texts, "form": schedule_form()})
    for text, one in zip(texts, found, strict=True):
        expected = read_in_python(text)
        assert one == expected or read_in_python(one) == expected, text  # 0.00001 is 1e-05
