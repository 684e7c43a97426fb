"""Check 6, label leakage: what do the soft labels tell about classes?"""

from feddig.attacks.labels import evaluate_labels, read_labels
from feddig.audit.accountant import promised
from feddig.audit.findings import NOT_RUN, Finding, figure_of_rate
from feddig.audit.limits import Limits
from feddig.audit.subject import Subject

TITLE = "What labels give away"
LIMITS = ("label_records_red",)


def check_labels(subject: Subject, limits: Limits) -> Finding:
    """Read classes off the labels, and count what is true."""
    if not subject.has_equal_weights:
        said = "Not run: the reading is for equal mixing weights; unequal ones give away more."
        return Finding("labels", TITLE, said, least=NOT_RUN, limits=LIMITS)
    adjacency = promised(subject.file).adjacency
    truth = subject.members.labels[subject.groups]
    leak = evaluate_labels(read_labels(subject.digest), truth, adjacency)
    sentence = (
        f"From the labels {leak.digests.share:.0%} of digests gave away all their classes, and "
        f"{leak.records.share:.0%} of records their own (chance: {leak.records.chance:.0%}); {leak.meaning}."
    )
    return Finding(
        "labels",
        TITLE,
        sentence,
        [
            figure_of_rate("records whose class was told", leak.records, limits, limits.label_records_red),
            figure_of_rate("digests whose classes were all read", leak.digests, limits),
        ],
        details={
            "adjacency": adjacency,
            "histogram_distance": leak.histogram_distance,
            "histogram_chance": leak.histogram_chance,
            "meaning": leak.meaning,
        },
        limits=LIMITS,
    )
