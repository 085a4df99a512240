"""The words and names that models read, that people see in a store, and that operators set, each in full.

They are part of what is kept stable: a test that names one says what a reader finds there. `test_wording.py` finds each
in a real request or store.
"""

from __future__ import annotations

# what a model reads

FIRST_LINE = "CONTEXT PACK"
REQUEST = "USER REQUEST:\n"
HANDED_OVER = "HANDED OVER:\n"
HEADERS = (
    "INTERPRETATION RULES", "TASK", "ROLE", "GOAL", "STEP", "CONSTRAINTS", "OPEN QUESTIONS", "NEXT", "STOP WHEN",
    "TOOLS", "EVIDENCE", "MEMORY", "ACTIVE INSTRUCTIONS", "ACCEPTANCE", "TOP EVIDENCE", "RECITATION", "USER REQUEST",
    "HANDED OVER",
)  # fmt: skip
"""The headers that a payload may have."""
CONTRACT_OPENING = "A CONTEXT PACK may open the user message that you answer."
"""The beginning of what the instruction of an agent with a plan says about payloads."""
SUMMARY_TITLE = "CONVERSATION SUMMARY (earlier messages that are no longer in full)"
ORDERS_TITLE = "- orders of the user, which hold until the user takes them back:"
TODO_TITLE = "- the to-do list as it is, of "
HISTORY = "artifact://history"
"""The address of all that was said."""
READ = "read_artifact"
FIND_TOOLS = "find_tools"
QUOTE_OPENING = "For context:"
QUOTE_BEGIN = "<<<BEGIN_QUOTED_AGENT_CONTENT>>>"
QUOTE_END = "<<<END_QUOTED_AGENT_CONTENT>>>"
"""The three are ADK's, which quotes other agents so."""

# what people see in a store

MANIFEST, FORGOTTEN = "manifest.json", "forgotten.json"

# what applications and operators see

LEARNED_WINDOWS = "aether:windows"
"""Where the state of a session holds the windows that models refused."""
SPOOL_FOLDER = "AETHER_CONTEXT_SPOOL"
"""The environment variable with the folder where files wait for a store that is down."""
