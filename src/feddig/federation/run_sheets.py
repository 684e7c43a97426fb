"""Write a run sheet for each party, one page with the exact commands, and the files to run it as a service."""

from feddig.federation.contract import Contract
from feddig.federation.folders import SiloFolder

_AGREED = """
## What was agreed

`federation.toml` is the contract; everybody holds the same file, SHA-256

    {hash}

(version {version}; `sha256sum federation.toml`). {promise}

{rounds} rounds of {algorithm}{mixed}. A silo that has not answered after {training:g} s of training, or {digest:g} s
for its digest, counts as absent; so does one whose update is longer than {update:g} times the model. The first round
waits for {start} of the {members} silos, and each round for {needed}; with fewer the federation pauses until they are
back{alone}.

If the organiser sends you a later version of it, `feddig federation accept . federation-{next}.toml` says what changes,
and takes it when you agree.
"""

_MODERATOR = """# Run sheet of the moderator of {name}

You run the moderator: the only party that the silos talk to, at {address}.

1. Install the same release as the silos, from its wheel file: `pip install "./{wheel}[flower]"`.
2. Put this folder where only you can read it. `server.key` proves that you are the moderator: give it to nobody.
3. Open TCP port {port} to the silos' addresses, and to no others. Through it silos reach only Flower's interface for
   nodes, with their keys; everything else answers this machine only. Do not put a proxy on this machine before it:
   to the moderator every request would then come from this machine.
4. Check this folder, then start, and leave it running:

       feddig federation check .
       feddig federation moderator .

   It ends by itself when all rounds are done and the silos have the model; silos that are away are waited for at most
   {stay:g} s. After a crash, a kill or a power cut give the same command again: it continues from the last finished
   round. Given again after the end, it sends the model to the silos that lack it. `feddig-moderator.service` is a
   systemd unit that does this for you. `Containerfile` builds a container that runs it. The first lines of both say how
   to use them.
5. Show its state, from the same folder:

       feddig federation status .

The silos: {silos}.

Results are in `run/`, log files in `logs/`. If you have test images, save them as arrays `x_test` and `y_test`
in `test.npz` here; without them accuracy is that of the present silos' validation images.
"""

_SILO = """# Run sheet of silo {silo}, {member}, in {name}

1. Install the same release as the others, from its wheel file: `pip install "./{wheel}[flower]"`.
2. Put this folder on the machine that holds your images. {key}
3. Read `federation.toml`, and compare its hash with the one below over another channel than the one it came by.
4. Say in `silo.toml` where your images are: a folder with a folder of images per class, an .npz file with x_train
   and y_train, or a folder of IDX files. Images must be {shape} (channels, height, width). Classes, in this order:
   {classes}. Then check all of it; only the last line, the way to the moderator, needs a moderator that runs:

       feddig federation check .

{steps}. Start, in this folder, and leave it running:

       feddig federation silo .

   It connects to {address}; nothing connects to you. It starts its node again after a crash, and retries
   for the minute in which a node that was killed is refused. At the end it writes the trained model to
   `model.safetensors` here and ends by itself: `feddig predict model.safetensors IMAGES` uses it. Stop it with Ctrl-C:
   you are then absent, and your digest stays in use. Start it again to come back. If only a proxy leads out,
   set HTTPS_PROXY=http://host:port first; the proxy must pass TLS through unchanged. `feddig-silo.service` is a systemd
   unit for this command. `Containerfile` builds a container that runs it. The first lines of both say how to use them.

Your images never leave this machine. What leaves: {leaves}. `released/` holds what was sent last;
keep it, because a second digest would reveal more and is refused. What releases cost is noted in the ledger of your
data, which all federations share: `ledger` under `[data]` in `silo.toml`, or else below `~/.local/state/feddig`.
The node runs the FedDig that you installed, whatever app its moderator sends.
"""

_AUDIT = """5. Make your digest, attack it on your own machine, and read `audit/report.html`. Nothing leaves before
   step 6:

       feddig digest make .
       feddig audit . --out audit

6"""

_OWN_KEY = """Copy into it the `key` that you made with `feddig federation
   key`; it proves that you are {member}, never left your machine, and is given to nobody."""
_GIVEN_KEY = """`key` proves that you are {member}: give it to nobody, and
   have the copy removed where it was made."""

_UNIT = """# Change User, WorkingDirectory (this folder) and the path of feddig. Then, as root:
#   cp feddig-{party}.service /etc/systemd/system/ && systemctl enable --now feddig-{party}
[Unit]
Description=FedDig, {party} {name}
Wants=network-online.target
After=network-online.target

[Service]
User=feddig
WorkingDirectory=/srv/feddig/{name}
ExecStart=/opt/feddig/bin/feddig federation {party} .
Restart=on-failure
RestartSec=60
# exit code after a signal to stop
SuccessExitStatus=130
# only feddig gets the signal: it ends its own processes, and needs time for it
KillMode=mixed
TimeoutStopSec=60
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""

_CONTAINER = """# Put this file and the wheel into an empty folder, so that no key gets into the image. Build there:
#   podman build -t feddig .
# Then, in the folder of {party} {name}{silo}:
#   podman run --rm --init --network host --stop-timeout 60 {mounts} feddig
# A command after the last word is run instead. The host's own network is needed because port forwarding can hide from
# the moderator where a request comes from.
FROM python:3.11-slim
COPY {wheel} /tmp/
RUN pip install --no-cache-dir "/tmp/{wheel}[flower]"
ENV XDG_STATE_HOME=/state
WORKDIR /party
CMD ["feddig", "federation", "{party}", "."]
"""
_LEDGER = "$HOME/.local/state/feddig"
"""The ledger of a silo's data must outlive the container, and is shared with commands that run outside."""


def unit(party: str, name: str) -> str:
    """Return the systemd unit of a party: `moderator` or `silo`."""
    return _UNIT.format(party=party, name=name)


def containerfile(party: str, name: str, version: str) -> str:
    """Return the file from which a container of a party is built: `moderator` or `silo`."""
    mounts, more = '-v "$PWD:/party"', ""
    if party == "silo":
        mounts += f' -v "{_LEDGER}:/state/feddig"'
        more = f" (make {_LEDGER} first; images elsewhere need one more -v)"
    return _CONTAINER.format(party=party, name=name, mounts=mounts, silo=more, wheel=_wheel(version))


def _wheel(version: str) -> str:
    return f"feddig-{version}-py3-none-any.whl"


def moderator_sheet(contract: Contract, version: str) -> str:
    """Return the moderator's page."""
    address, names = contract.address, ", ".join(contract.members[silo].name for silo in contract.active)
    page = _MODERATOR.format(
        name=contract.name,
        address=address,
        port=address.rpartition(":")[2],
        silos=names,
        stay=contract.longest_stay,
        wheel=_wheel(version),
    )
    return page + _agreed(contract)


def silo_sheet(contract: Contract, silo: int, folder: SiloFolder, version: str) -> str:
    """Return a silo's page."""
    key, member = _GIVEN_KEY if folder.key.exists() else _OWN_KEY, contract.members[silo].name
    page = _SILO.format(
        name=contract.name,
        silo=silo,
        member=member,
        key=key.format(member=member),
        leaves=_leaves(contract),
        steps=_AUDIT if contract.experiment.recipe.collects_digests else "5",
        address=contract.address,
        shape=" x ".join(map(str, contract.image_shape)),
        classes=", ".join(contract.classes),
        wheel=_wheel(version),
    )
    return page + _agreed(contract)


def _leaves(contract: Contract) -> str:
    recipe = contract.experiment.recipe
    digest = ["your digest, once"] if recipe.collects_digests else []
    update = ["in each round the update of the model"] if recipe.silos_train else []
    return "; ".join([*digest, *update, "the accuracy on your validation images"])


def _agreed(contract: Contract) -> str:
    experiment = contract.experiment
    return _AGREED.format(
        hash=contract.hash,
        version=contract.version,
        next=contract.version + 1,
        rounds=experiment.training.rounds,
        algorithm=experiment.algorithm.name,
        mixed=f"; {experiment.digest.samples_per_digest} samples in a digest"
        if experiment.recipe.collects_digests
        else "",
        promise=experiment.say_promise(),
        training=contract.training_deadline,
        digest=contract.digest_deadline,
        update=contract.longest_update,
        members=len(contract.active),
        start=contract.silos_to_start(len(contract.active)),
        needed=contract.needed_silos(len(contract.active)),
        alone=f", after {contract.rounds_alone} rounds without them" if contract.rounds_alone else "",
    )
