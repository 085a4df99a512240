"""What model calls have used and what they may still use: pure accounts, without ADK."""

from aether_context.usage.ledger import (
    SCOPES,
    Accuracy,
    BudgetViolation,
    CallUsage,
    Estimate,
    Gauge,
    LedgerReport,
    Pressure,
    Scope,
    Snapshot,
    TokenBudget,
    TokenLedger,
    Totals,
    accuracy,
)

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
