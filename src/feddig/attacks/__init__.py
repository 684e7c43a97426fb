"""Attacks on digests: what somebody with public models and a pool of images can learn from one.

An attacker's function is given a digest, public networks and candidates. Who were the members is known to the
evaluators alone, which hold what an attack found against the truth, against chance and against a baseline. An
attack that fails proves nothing: another one may not.
"""
