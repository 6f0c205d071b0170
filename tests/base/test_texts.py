"""labkit.base.texts: names in a sentence."""

from labkit.base.texts import listed


def test_names_are_listed_as_a_sentence_does():
    assert [listed("abc"[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert listed((rank for rank in (0, 2)), "or") == "0 or 2"
