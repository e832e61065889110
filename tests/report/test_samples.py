"""What the model wrote, in the report."""

from fullstride.report import samples, surroundings
from fullstride.report.page import page

from .page_reader import Page
from .runs import eval_row, event_row, make_run, rows, train_row


def sample(step, text, **changes):
    return event_row(step, "sample", text=text, **changes)


def many(count):
    return [row for step in range(1, count + 1) for row in (eval_row(step, 1 - 1 / step), sample(step, f"text {step}"))]


def test_a_run_without_samples_has_no_such_section():
    assert samples.section(make_run(rows())) is None


def test_each_sample_stands_beside_its_step_and_loss():
    found = samples.section(make_run([eval_row(20, 0.25), sample(20, "To be,\nor"), sample(1500, "not")]))
    (table,) = found.tables
    assert list(table.rows) == [("20", "0.750", "To be,\nor"), ("1,500", "-", "not")]
    assert table.keeps_lines


def test_of_many_the_first_the_last_and_some_between_are_shown_and_all_are_behind_a_fold():
    shown, everything = samples.section(make_run(many(13))).tables
    assert [row[2] for row in shown.rows] == ["text 1", "text 4", "text 7", "text 10", "text 13"]
    assert [row[2] for row in everything.rows] == [f"text {step}" for step in range(1, 14)]
    assert (shown.fold, everything.fold) == ("", "All 13 samples")


def test_five_need_no_fold():
    assert len(samples.section(make_run(many(5))).tables) == 1


def test_a_long_text_is_cut_and_whole_behind_the_fold():
    shown, everything = samples.section(make_run([sample(3, "x" * 5000)])).tables
    assert shown.rows[0][2] == "x" * 1000 + " ..."
    assert everything.rows[0][2] == "x" * 5000


def test_a_step_that_was_done_again_counts_once():
    found = samples.section(make_run([sample(4, "before"), sample(4, "after", attempt=2)]))
    assert [row[2] for row in found.tables[0].rows] == ["after"]


def test_control_characters_are_seen_as_unknown_ones():
    found = samples.section(make_run([sample(4, "a\x1b[1m\x00\tb\r\n")]))
    assert found.tables[0].rows[0][2] == "a\ufffd[1m\ufffd\tb\ufffd\n"


def test_samples_are_no_events():
    assert surroundings.events_section(make_run([event_row(0, "start"), *many(9), event_row(9, "end")])) is None


def test_the_page_escapes_text_keeps_its_lines_and_folds_what_is_much(fast_figures):
    text = "<script>alert(1)</script>\n  & so"
    found = page(make_run([train_row(20), *many(9), sample(10, text)]))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\n  &amp; so</td>" in found
    read = Page(found)
    assert len(read.all("details")) == 1
    assert "All 10 samples" in read.text
    assert [t.get("class") for t in read.all("table")].count("verbatim") == 2
