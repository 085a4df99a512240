"""The demo's agent: it reads this package's own source in a window that is too small for it.

Everything is real but the model: ADK's runner, tools that read files, packs in a store. Without a model's name a script
stands in for the model, so that it runs offline and takes the same calls on every machine.
"""
