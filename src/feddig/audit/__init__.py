"""The audit: a silo attacks its own digests before it sends them.

Each check yields figures. At the end all checks are judged together: which figures are beyond chance, and which verdict
(green, amber or red) each check gets. A pass means that these attacks failed, never that the digests are private.
"""
