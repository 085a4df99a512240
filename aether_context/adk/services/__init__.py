"""ADK services on the package's own stores, and the thread that writes packs."""
