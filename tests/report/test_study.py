"""The checks of a study and the groups of its runs."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.records.facts import AttackFacts
from holdfast.records.records import Records
from holdfast.report.study import Run


def test_names_keep_their_order_and_seeds_ascend(make_run, make_study) -> None:
    runs = [make_run("b", 1, n=5), make_run("a", 3, n=5), make_run("b", 0, n=5)]
    groups = make_study(runs).attacked()
    assert {name: [run.seed for run in group] for name, group in groups.items()} == {"b": [0, 1], "a": [3]}
    assert list(groups) == ["b", "a"]


def test_the_stated_norm_comes_first(make_run, make_study) -> None:
    study = make_study([make_run("a", 0, n=5)])
    assert study.norms() == ["linf", "l2"]
    assert replace(study, norm="l2").norms() == ["l2", "linf"]


def test_no_runs_and_twice_the_same_run_are_refused(make_run, make_study) -> None:
    with pytest.raises(ValueError, match="no runs"):
        make_study([])
    with pytest.raises(ValueError, match="'a' with seed 0 twice"):
        make_study([make_run("a", 0, n=5), make_run("a", 0, n=5)])


def test_one_attack_name_means_one_threat(make_run, make_study) -> None:
    run = make_run("a", 0, n=5)
    attacks = dict(run.records.facts["attacks"]) | {"FGSM": AttackFacts(norm="linf", eps=0.2).facts()}
    other = replace(run, seed=1, records=Records(run.records.columns, dict(run.records.facts) | {"attacks": attacks}))
    with pytest.raises(ValueError, match=r"'FGSM' is linf at eps 0\.3 in one run and linf at eps 0\.2"):
        make_study([run, other])


def certified(name: str, seed: int, group: str, norm: str = "l2") -> Run:
    columns = {"index": np.arange(2), "y": np.zeros(2, int), "label": np.zeros(2, int)}
    columns |= {f"radius:{norm}:neighbors": np.ones(2), f"upper:{norm}:neighbors": np.full(2, 2.0)}
    return Run(name=name, method="nca", seed=seed, records=Records(columns), group=group)


def test_groups_keep_classifiers_of_one_name_apart(make_run, make_study) -> None:
    network = make_run("net", 0, n=5)
    runs = [certified("NCA", 0, "K = 1"), certified("NCA", 0, "K = 11"), certified("NCA", 0, "K = 1", "linf"), network]
    with pytest.raises(ValueError, match="'NCA, K = 1' with seed 0 twice"):
        make_study(runs)
    study = make_study([*runs[:2], network])
    assert [(key, [run.name for run in runs]) for key, runs in study.certified().items()] == [
        (("K = 1", "l2:neighbors"), ["NCA"]),
        (("K = 11", "l2:neighbors"), ["NCA"]),
    ]
    assert list(study.attacked()) == ["net"]


def test_norm_and_eps_are_given_together(make_run, make_study) -> None:
    with pytest.raises(ValueError, match="give both or neither"):
        replace(make_study([make_run("a", 0, n=5)]), eps=None)
