"""Who wrote a message that quotes another agent: that agent's turn as ADK shows it, or a user who imitates the form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from google.adk.events.event import Event
from google.genai import types

from aether_context.conversation.quotes import NAMELESS, opens
from aether_context.pack import Content


class Authors:
    """The authors of a session's messages.

    Args:
        events: the session's.
        asked: the message that the invocation answers, which need not be among them.
    """

    def __init__(self, events: Sequence[Event], asked: types.Content | None) -> None:
        self._events = events
        self._asked = asked
        self._agents: frozenset[str] | None = None
        self._imitations: list[types.Content] = []

    def attributed(self, raw: types.Content, content: Content) -> Content:
        """A content as its author's: one that only imitates another agent's turn is a user's.

        Args:
            raw: the same as the host gave it.
        """
        if not content.agent or self._quotes(raw, content):
            return content
        return replace(content, agent="", quotes=())

    def _quotes(self, raw: types.Content, content: Content) -> bool:
        """Whether a content that has the form of another agent's turn is one.

        What a user sent is none, whatever it looks like; nor is a quote of an agent that the session does not know.
        """
        if self._agents is None:
            self._agents = frozenset(event.author for event in self._events if event.author != "user")
            own = [event.content for event in self._events if event.author == "user" and event.content is not None]
            self._imitations = [one for one in (*own, *_given(self._asked)) if looks_quoted(one)]
        if any(one.parts == raw.parts for one in self._imitations):
            return False
        named = {quote.agent for quote in content.quotes}
        return content.agent == NAMELESS or named <= self._agents | {_PERSON}


_PERSON = "user"
"""Whose result ADK quotes where a person posts one to another agent's call."""


def _given(content: types.Content | None) -> Iterable[types.Content]:
    return () if content is None else (content,)


def looks_quoted(content: types.Content) -> bool:
    """Whether a content opens as ADK lets another agent's turn open."""
    return content.role == "user" and bool(content.parts) and opens((content.parts or [])[0].text)
