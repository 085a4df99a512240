"""Every error this package raises, in one tree.

AetherContextError
├── PolicyError          a setting is wrong: which field, which value, and the cure
├── BudgetExceededError  the next model call would pass a limit: which one, and by how much
├── ContextOptimizationError  a request cannot be brought down to its budget: needed, budget, and the cure
│   ├── StepTooLarge         what must be sent does not fit the window
│   └── AnchorPreservationError  contents that must be kept do not fit the budget: which ones
├── TokenCountingError   a token counter failed: which one, why, and the cure
├── EmbeddingError       an embedder failed: which one, and why
├── SearchIndexError     an index was given invalid data, or cannot be read
├── MissingExtra         an optional dependency is needed: which one, and the line that installs it
├── StateError           a value cannot be written into a session's state
│   ├── BoardError           a change that the task board does not allow: which step, and what is allowed
│   └── KnowledgeError       a note or an evidence record that is wrong: which field, and the cure
├── SessionError         a session could not be read
├── StoreError           the store could not be read or written
│   ├── StoreUnavailable the server that holds it is away, or did not answer in time
│   ├── PackNotFound     no pack of that id is in the store
│   └── BlobNotFound     a pack names content that the store does not hold
├── ArtifactError        an artifact cannot be saved or loaded: which one, and the cure
├── ManifestError        a manifest is not valid, or is not what was written
│   ├── SchemaVersionError   written by a version this one cannot read
│   └── ChecksumMismatch     a byte changed since it was written
└── ReplayError          a pack could not be built again
    ├── ReplayIncomplete     the recording lacks what a replay needs
    └── ReplayMismatch       the first stage whose result differs
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal


class AetherContextError(RuntimeError):
    """The root of all errors raised by this package.

    It is a `RuntimeError`, since ADK turns what a plugin raises into one, with the error itself as its cause.
    """


class PolicyError(AetherContextError):
    """A setting of a policy is wrong."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        self.field = field
        super().__init__(message)


def near_names(name: str, known_names: Iterable[str]) -> str:
    """The hint for an unknown name: ``did you mean 'chat'?``, or the names that are known."""
    known_names = list(known_names)
    near = difflib.get_close_matches(name, known_names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known_names)}"


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


_WAYS_OUT = {
    "session": "go on in a new session",
    "invocation": "split the task over several messages",
    "agent": "give the rest to another agent",
}


class BudgetExceededError(AetherContextError):
    """The next model call would pass a limit of the policy.

    Attributes:
        scope: ``session``, ``invocation`` or ``agent``; ``name`` is its name, empty for the session itself.
        measure: ``input``, ``output`` or ``total`` tokens, or ``cost`` in US dollars; ``limit``, ``used`` and
            ``planned`` are in its unit. ``used`` includes the estimates of calls that are under way.
        suggestion: what to do about it.
    """

    def __init__(
        self, *, scope: str, name: str, measure: str, limit: int | Decimal, used: int | Decimal, planned: int | Decimal
    ) -> None:
        self.scope = scope
        self.name = name
        self.measure = measure
        self.limit = limit
        self.used = used
        self.planned = planned
        field = "cost_usd" if measure == "cost" else f"{measure}_tokens"
        whose = f"agent {name!r}" if scope == "agent" else f"the {scope}"
        self.suggestion = f"raise limits.{scope}.{field}, or {_WAYS_OUT[scope]}"

        def amount(value: int | Decimal) -> str:
            if measure == "cost":
                return f"{value:.4f} US dollars"
            return f"{value:,} {measure} tokens" if measure != "total" else f"{value:,} tokens"

        super().__init__(
            f"the next call would take {amount(planned)}, and {whose} has used {amount(used)} of {amount(limit)}: "
            f"{self.suggestion}"
        )


class ContextOptimizationError(AetherContextError):
    """A request cannot be brought down to its budget. ``needed`` and ``budget`` are tokens."""

    def __init__(self, message: str, *, needed: int, budget: int, suggestion: str) -> None:
        self.needed = needed
        self.budget = budget
        self.suggestion = suggestion
        super().__init__(f"{message}: {suggestion}")


_SPLIT = {
    "system": "shorten the system instruction: to split the step does not make it smaller",
    "task": "split the step into steps that each have fewer acceptance items, or shorten the request",
    "tools": "split the step into steps that each name fewer tools",
}


class StepTooLarge(ContextOptimizationError):
    """System, task and tools alone exceed the input budget, so the step has to be split.

    All quantities are tokens. ``measured`` are the layers, with everything shortened that can be; ``texts`` are the
    texts that they consist of, by name, where these are known; ``largest`` is the largest layer.
    """

    def __init__(
        self, *, window: int, slack: int, measured: Mapping[str, int], texts: Mapping[str, int] | None = None
    ) -> None:
        self.window = window
        self.slack = slack
        self.measured = dict(measured)
        self.texts = dict(texts or {})
        self.largest = max(self.measured, key=lambda layer: self.measured[layer])
        needed, budget = sum(measured.values()), window - slack
        parts = ", ".join(f"{layer} {tokens}" for layer, tokens in self.measured.items())
        ranked = sorted(self.texts.items(), key=lambda text: (-text[1], text[0]))[:5]
        named = f"; largest are {', '.join(f'{name} {tokens}' for name, tokens in ranked)}" if ranked else ""
        super().__init__(
            f"the step needs {needed} tokens ({parts}) and the input budget is {budget} (window {window} - slack "
            f"{slack}), {needed - budget} too many{named}",
            needed=needed,
            budget=budget,
            suggestion=_SPLIT[self.largest],
        )


class AnchorPreservationError(ContextOptimizationError):
    """Contents that must be kept do not fit the budget. ``anchors`` are their names; the quantities are tokens."""

    def __init__(self, *, anchors: Sequence[str], needed: int, budget: int) -> None:
        self.anchors = tuple(anchors)
        super().__init__(
            f"{len(self.anchors)} contents that must be kept ({', '.join(self.anchors)}) need {needed} tokens and the "
            f"input budget is {budget}",
            needed=needed,
            budget=budget,
            suggestion="keep fewer of them, or raise max_input_tokens",
        )


class TokenCountingError(AetherContextError):
    """A token counter cannot count: ``counter`` is its name, ``reason`` says why, ``suggestion`` is the cure."""

    def __init__(self, counter: str, reason: str, *, suggestion: str = "") -> None:
        self.counter = counter
        self.reason = reason
        self.suggestion = suggestion or 'set tokens.counter to "estimate", which needs nothing'
        super().__init__(f"token counter {counter}: {reason}" + (f": {suggestion}" if suggestion else ""))


class EmbeddingError(AetherContextError):
    """An embedder failed: ``embedder`` is its name, ``reason`` says why."""

    def __init__(self, embedder: str, reason: str) -> None:
        self.embedder = embedder
        self.reason = reason
        super().__init__(f"embedder {embedder}: {reason}")


class SearchIndexError(AetherContextError):
    """An index was given invalid data, or its file cannot be read."""


class MissingExtra(AetherContextError):
    """An optional dependency is not installed: an extra, or where ``is_package`` a package of that name."""

    def __init__(self, extra: str, purpose: str, *, is_package: bool = False) -> None:
        self.extra = extra
        what, line = ("a package", extra) if is_package else ("an extra", f'"aether-context-adk[{extra}]"')
        super().__init__(f"{purpose} needs {what} that is not installed: pip install {line}")


class StateError(AetherContextError):
    """A value cannot be written into a session's state."""


class BoardError(StateError):
    """A change that the task board does not allow. ``step`` is the name of the step, None where it is the plan."""

    def __init__(self, message: str, *, step: str | None = None) -> None:
        self.step = step
        super().__init__(message)


class KnowledgeError(StateError):
    """A note or an evidence record is wrong. ``field`` is the name of the wrong field."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        self.field = field
        super().__init__(message)


class SessionError(AetherContextError):
    """A session could not be read, or there is none."""


class StoreError(AetherContextError):
    """The store could not be read or written."""


class StoreUnavailable(StoreError):
    """The server that holds the store is away, or did not answer in time. Later the same may succeed."""


class PackNotFound(StoreError):
    """No pack of that id is in the store."""


class BlobNotFound(StoreError):
    """A pack names content that the store does not hold."""


class ArtifactError(AetherContextError):
    """An artifact cannot be saved or loaded, or a URI names none of its session."""


class ManifestError(AetherContextError):
    """A manifest is not valid, or is not what was written."""


class SchemaVersionError(ManifestError):
    """The manifest was written by a version that this one cannot read."""


class ChecksumMismatch(ManifestError):
    """Stored bytes are not those that were written."""


class ReplayError(AetherContextError):
    """A pack could not be built again from its manifest."""


class ReplayIncomplete(ReplayError):
    """The recording lacks what a replay needs."""

    def __init__(self, missing: list[str]) -> None:
        self.missing = missing
        super().__init__("the recording lacks what a replay needs: " + "; ".join(missing))


class ReplayMismatch(ReplayError):
    """A stage of the replay gave another result than the recorded one."""

    def __init__(self, stage: str, recorded: str, rebuilt: str) -> None:
        self.stage = stage
        self.recorded = recorded
        self.found = rebuilt
        super().__init__(f"stage {stage!r} differs: recorded {recorded}, replayed {rebuilt}")
