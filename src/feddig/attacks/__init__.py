"""Attacks on digests: what an attacker with public models and a pool of images can learn.

An attack sees a digest, public networks and candidate images. The `evaluate_*` functions also know the true members:
they compare the attack's answers with the truth, with chance and with a baseline. An attack that fails proves nothing:
another one may succeed.
"""
