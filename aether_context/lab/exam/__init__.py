"""Examines recorded sessions: could calls know what they used, where a cut had taken it? No model is asked."""

from __future__ import annotations

from aether_context.lab.exam.intervals import Interval
from aether_context.lab.exam.marking import Exam, SessionMarks, hold_exam
from aether_context.lab.exam.questions import Question, questions

__all__ = ["Exam", "Interval", "Question", "SessionMarks", "hold_exam", "questions"]
