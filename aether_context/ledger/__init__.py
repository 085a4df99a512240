"""What model calls have used, what they may still use, and what the next ones will: pure accounts, without ADK."""

from aether_context.ledger.accounts import (
    SCOPES,
    BudgetViolation,
    Estimate,
    Forecast,
    Gauge,
    LedgerReport,
    Pressure,
    Scope,
    Snapshot,
    TokenBudget,
    TokenLedger,
)
from aether_context.ledger.usage import Accuracy, CallUsage, Totals, accuracy

__all__ = [
    "SCOPES",
    "Accuracy",
    "BudgetViolation",
    "CallUsage",
    "Estimate",
    "Forecast",
    "Gauge",
    "LedgerReport",
    "Pressure",
    "Scope",
    "Snapshot",
    "TokenBudget",
    "TokenLedger",
    "Totals",
    "accuracy",
]
