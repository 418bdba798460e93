"""The stopwatch of the benchmark of holdfast.evaluate."""

import one_call
import pytest


def test_calls_inside_others_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(one_call.time, "process_time", lambda: clock[0])

    def takes(seconds: float) -> None:
        clock[0] += seconds

    watch = one_call.Stopwatch()
    predict = watch.timed("predictions", takes)

    def attack() -> None:
        takes(3)
        predict(2)
        takes(1)

    watch.timed("attacks", attack)()
    predict(5)
    takes(10)
    assert watch.spent == {"attacks": 4.0, "predictions": 7.0}
