"""Each run names what made it, and the page warns when results were made by different code."""

from dataclasses import replace

import pytest

from holdfast.records.records import Records
from holdfast.report.sections.provenance import section
from holdfast.report.text import markdown

NEW = {"code": "a" * 12, "versions": {"torch": "2.13", "threads": "1"}, "commit": "1" * 40}
OLD = {"code": "b" * 12, "versions": {"torch": "2.13", "threads": "1"}, "commit": "2" * 40}


@pytest.fixture
def made(make_run):
    def build(seed: int, evaluated, trained):
        run = make_run("a", seed, n=9)
        facts = dict(run.records.facts)
        facts |= {"made": evaluated, "training": facts["training"] | {"made": trained}}
        return replace(run, records=Records(run.records.columns, facts))

    return build


def test_each_run_shows_its_makers(made, make_study) -> None:
    runs, makers = section(make_study([made(0, [OLD, NEW], [OLD]), made(1, [NEW], [NEW])])).tables
    assert [row.cells[-2:] for row in runs.rows] == [
        (OLD["code"], f"{OLD['code']}, {NEW['code']}"),
        (NEW["code"], NEW["code"]),
    ]
    assert [(row.name, row.cells) for row in makers.rows] == [
        (OLD["code"], ("2" * 12, "torch 2.13, threads 1")),
        (NEW["code"], ("1" * 12, "torch 2.13, threads 1")),
    ]


def test_results_of_one_version_give_no_warning(made, make_study) -> None:
    other_machine = NEW | {"versions": {"torch": "2.13", "threads": "8"}, "commit": "3" * 40}
    study = replace(make_study([made(0, [NEW], [NEW]), made(1, [other_machine], [NEW])]), code=NEW["code"])
    assert section(study).warnings == []


@pytest.mark.parametrize("other", [OLD, NEW | {"versions": {"torch": "2.14"}}])
def test_results_of_different_code_or_libraries_give_a_warning(made, make_study, other) -> None:
    for runs in ([made(0, [NEW], [NEW]), made(1, [other], [NEW])], [made(0, [other, NEW], [NEW])]):
        (warning,) = section(make_study(runs)).warnings
        assert "2 different versions of the code or its libraries" in warning


def test_results_of_other_code_than_the_pages_are_named(made, make_study) -> None:
    study = replace(make_study([made(0, [NEW], [NEW]), made(1, [NEW], [OLD])]), code=NEW["code"])
    (_, warning) = section(study).warnings
    assert warning.startswith("Models of a (seed 1) were trained by other code than")
    measured = replace(make_study([made(0, [NEW], [NEW]), made(1, [OLD], [NEW])]), code=NEW["code"])
    (_, warning) = section(measured).warnings
    assert warning.startswith("Results of a (seed 1) were made by other code than")
    assert section(replace(study, code="c" * 12)).warnings[1].startswith("All results were made by other code than")


def test_records_without_makers_show_their_commit_and_versions(make_run, make_study) -> None:
    study = make_study([make_run("a", 0, n=9)])
    runs, makers = section(study).tables
    assert runs.rows[0].cells[-2:] == ("-", "c" * 12)
    assert [(row.name, row.cells) for row in makers.rows] == [
        ("c" * 12, ("c" * 12, "holdfast 0.1.0, torch 2.13.0")),
    ]
    assert section(study).warnings == []
    (warning,) = section(replace(study, code="a" * 12)).warnings
    assert warning.startswith("All results were made by other code")


def test_a_document_lists_the_versions_of_all_makers(made, make_study) -> None:
    text = markdown(make_study([made(0, [OLD | {"versions": {"torch": "2.12"}}, NEW], [NEW])]), "holdfast run x")
    assert "Versions: torch 2.12." in text
    assert "Versions: torch 2.13, threads 1." in text
