"""A silo's app that trains honestly and replies something else: started by chaos.py in place of the silo's own.

python lying_silo.py LIE [what Flower gives to the app]
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from feddig.flower import client_app, own_app
from feddig.messages import Reply


def fail(reply: Reply) -> Reply:
    """Raise in the app."""
    raise RuntimeError("the silo's app fails, as it was told to")


LIES: dict[str, Callable[[Reply], Reply]] = {
    "nan": lambda reply: replace(reply, update=torch.full_like(reply.update, torch.nan)),
    "too short": lambda reply: replace(reply, update=reply.update[:-1]),
    "too large": lambda reply: replace(reply, update=torch.full_like(reply.update, 3e38)),
    "no steps": lambda reply: replace(reply, steps=0),
    "another round": lambda reply: replace(reply, round=reply.round + 1),
    "another silo": lambda reply: replace(reply, silo=reply.silo + 1),
    "exception": fail,
}


def main() -> None:
    """Be the silo's app, but for what it replies after training."""
    app: Any = client_app
    lie, honest = LIES[sys.argv.pop(1)], app.pack_reply
    app.pack_reply = lambda reply: honest(lie(reply))
    own_app.main()


if __name__ == "__main__":
    main()
