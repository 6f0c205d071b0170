"""Entries of the glossary fit in a link, and a notebook's terms link to them at their first use."""

from nbformat.v4 import new_markdown_cell

from labkit.course.glossary import Term, glossary, link_terms

RANK = Term("rank", (), "One worker.")
MICRO_BATCH = Term("micro-batch", ("m",), "A part of a batch.")


def linked(*texts, tags=()):
    cells = [new_markdown_cell(text) for text in texts]
    cells[-1].metadata.update({"tags": list(tags)} if tags else {})
    link_terms(cells, (RANK, MICRO_BATCH))
    return [cell.source for cell in cells]


def test_a_term_links_with_its_meaning_where_it_is_first_used_and_nowhere_else():
    rank, batch = '(../docs/glossary.md#rank "One worker.")', '(../docs/glossary.md#micro-batch "A part of a batch.")'
    assert linked("Two ranks.", "A rank, *m*\nmicro-\nbatches, m.") == [
        f"Two [ranks]{rank}.",
        f"A rank, *[m]{batch}*\nmicro-\nbatches, m.",
    ]


def test_no_term_links_in_code_headings_the_notebooks_question_tables_links_formulas_or_a_reports_cells():
    texts = [
        "# A rank",
        "**Which rank?**",
        "`rank` and\n\n    rank 1\n",
        "```\nrank\n```",
        "| rank | m |",
        "$m$ <b rank>",
    ]
    texts += ["[rank](https://rank.org) https://example.org/rank", "5 ms, it'm, ranking"]
    assert linked(*texts) == texts
    assert linked("A rank.", tags=["question"]) == ["A rank."]


def test_linking_again_changes_nothing_and_renews_what_the_glossary_has_changed():
    once = linked("Two ranks and m.")
    assert linked(*once) == once
    assert linked(once[0].replace("One worker.", "Something else.")) == once


def test_an_entry_is_short_fits_in_a_link_and_has_an_anchor_that_github_and_jupyterlab_agree_on():
    assert len(glossary()) > 25
    for term in glossary():
        assert term.name == term.name.lower() and term.name.isascii(), term  # JupyterLab keeps capitals
        assert term.meaning.endswith(".") and len(term.meaning) <= 130 and '"' not in term.meaning, term
    forms = [form for term in glossary() for form in (term.name, *term.others)]
    assert len(forms) == len(set(forms))
