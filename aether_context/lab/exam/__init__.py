"""Examines recorded sessions: questions about what was said before, asked of each later request, without a model."""

from __future__ import annotations

from aether_context.lab.exam.intervals import Interval
from aether_context.lab.exam.marking import Exam, SessionMarks, hold_exam
from aether_context.lab.exam.questions import Question, questions

__all__ = ["Exam", "Interval", "Question", "SessionMarks", "hold_exam", "questions"]
