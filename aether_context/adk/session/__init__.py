"""What a session's state holds for the plugin: the epoch, and the records of evidence."""
