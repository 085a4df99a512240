"""The tree of errors: what is drawn is what there is, and each error carries its numbers and a cure."""

from __future__ import annotations

import inspect
import re

from aether_context import errors


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([│├└─ ]*)([A-Z]\w+)", line)
        if found is None or not found[2].endswith(
            ("Error", "Large", "Extra", "Found", "Mismatch", "Incomplete", "Unavailable")
        ):
            continue
        depth = len(found[1]) // 4
        path[depth:] = [found[2]]
        drawn[found[2]] = path[depth - 1] if depth else None
    real = {
        name: one.__base__.__name__ if one is not errors.AetherContextError else None
        for name, one in inspect.getmembers(errors, inspect.isclass)
        if issubclass(one, errors.AetherContextError)
    }
    assert drawn == real


def test_a_step_that_is_too_large_is_a_failure_to_fit_with_its_numbers() -> None:
    error = errors.StepTooLarge(window=1_000, slack=100, measured={"system": 700, "task": 250, "tools": 50})
    assert isinstance(error, errors.ContextOptimizationError)
    assert (error.needed, error.budget, error.window, error.slack) == (1_000, 900, 1_000, 100)
    assert error.suggestion.startswith("shorten the system instruction")
    assert str(error).endswith(error.suggestion)


def test_anchors_that_do_not_fit_are_named() -> None:
    error = errors.AnchorPreservationError(anchors=["c0_a546a499", "c7_3c199e95"], needed=9_000, budget=8_000)
    assert isinstance(error, errors.ContextOptimizationError)
    assert error.anchors == ("c0_a546a499", "c7_3c199e95")
    assert "c0_a546a499, c7_3c199e95" in str(error)
    assert "9000 tokens and the input budget is 8000" in str(error)
    assert str(error).endswith(error.suggestion)


def test_a_failed_count_names_counter_and_cure() -> None:
    error = errors.TokenCountingError("tiktoken", "no vocabulary", suggestion="give its file by path")
    assert str(error) == "token counter tiktoken: no vocabulary: give its file by path"
    assert (error.counter, error.suggestion) == ("tiktoken", "give its file by path")
