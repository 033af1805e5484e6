"""A package of somebody else: a task, a reader, a loss, an attachment and a metric for bertkit."""
