"""The matrix of paired tests."""

from holdfast.report.elements.table import Remark
from holdfast.report.sections.accuracy import section as accuracy
from holdfast.report.sections.comparisons import matrix, section
from holdfast.report.summary import compare, robust_accuracy


def test_the_matrix_has_each_difference_once_in_each_direction(study) -> None:
    pairs = compare(study)
    table = matrix(study, pairs)
    assert [row.name for row in table.rows] == ["TLA", "AT", "Plain"]
    cells = robust_accuracy(study)
    gain = 100 * (cells["TLA"].mean - cells["Plain"].mean)
    above, below = table.rows[0].cells[2], table.rows[2].cells[0]
    assert above == Remark(f"+{gain:.1f}", "p < 0.0001", strong=True)
    assert below == Remark(f"\N{MINUS SIGN}{gain:.1f}", "p < 0.0001", strong=True)
    assert table.rows[1].cells[1] == ""
    close = next(c for c in table.rows[0].cells if isinstance(c, Remark) and c != above)
    p = max(pair.adjusted for pair in pairs if {pair.first, pair.second} == {"TLA", "AT"})
    assert close.note == f"p = {p:.4f}"
    assert close.strong == (p < 0.05)


def test_the_list_of_all_tests_is_folded(study) -> None:
    shown, folded = section(study).tables
    assert not shown.folded
    assert folded.folded
    assert len(folded.rows) == 6


def test_one_model_has_no_comparison(make_run, make_study) -> None:
    assert section(make_study([make_run("a", 0, n=20)])) is None


def test_two_points_are_no_curve(make_run, make_study, without) -> None:
    run = make_run("a", 0, n=20)
    assert [plot.title for plot in accuracy(make_study([run])).plots] == ["Robust accuracy against linf eps"]
    assert accuracy(make_study([without(run, "PGD-40 at 0.1")])) is None
