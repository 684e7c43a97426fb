"""The audit: a silo plays the attacker against its own digests before anything is sent.

One file holds one check. A check gives figures; which of them are beyond chance, and what colour that is, is judged
at the end, over all checks together. A pass means that these attacks failed, never that the digests are private.
"""
