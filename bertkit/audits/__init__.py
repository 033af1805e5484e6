"""Training data audited by cross-validation: labels that are likely wrong, and other rows to look at.

The folder is not named `audit`, because importing it would hide the function `bertkit.audit`.
"""
