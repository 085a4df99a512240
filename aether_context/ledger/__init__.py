"""What model calls have used and what they may still use: pure accounts, without ADK."""

from aether_context.ledger.accounts import (
    SCOPES,
    BudgetViolation,
    Estimate,
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
