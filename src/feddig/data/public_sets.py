"""The four public data sets as their publishers describe them: files, counts, licences, addresses and hashes."""

import string
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Download:
    """One file on a publisher's server; its hash is SHA-256."""

    address: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return self.address.rpartition("/")[2]


@dataclass(frozen=True)
class PublishedFile:
    """One file of a set: its name without ".gz", and the hash of the publisher's copy, as "algorithm:digits".

    The hash is of the unzipped content, or of the gzip file if only that hash has been published.
    """

    name: str
    fingerprint: str
    of_gzip: bool = False


@dataclass(frozen=True)
class PublishedSet:
    """A public data set as its publisher describes it.

    `folder` is the folder in the publisher's archive that holds the files. `pickled` names the pickled version: its
    folder, and the first file in it.
    """

    name: str
    format: Literal["idx", "cifar"]
    classes: tuple[str, ...]
    train_files: tuple[PublishedFile, ...]
    test_files: tuple[PublishedFile, ...]
    train_count: int
    test_count: int
    licence: str
    page: str
    downloads: tuple[Download, ...]
    folder: str = ""
    pickled: tuple[str, ...] = ()
    transposed: bool = False
    label_bytes: int = 1

    @property
    def files(self) -> tuple[PublishedFile, ...]:
        """All files of the set."""
        return self.train_files + self.test_files


_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_KRIZHEVSKY = "https://www.cs.toronto.edu/~kriz/"
# the CIFAR page asks for a citation and names no licence
_CIFAR_LICENCE = "none stated; cite Krizhevsky 2009"

FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)

_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

_FASHION_MNIST = PublishedSet(
    name="fashion-mnist",
    format="idx",
    classes=FASHION_CLASSES,
    train_files=(
        PublishedFile(
            "train-images-idx3-ubyte",
            "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        PublishedFile(
            "train-labels-idx1-ubyte",
            "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
    ),
    test_files=(
        PublishedFile(
            "t10k-images-idx3-ubyte",
            "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        PublishedFile(
            "t10k-labels-idx1-ubyte",
            "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    train_count=60_000,
    test_count=10_000,
    licence="MIT",
    page="https://github.com/zalandoresearch/fashion-mnist",
    downloads=(
        Download(
            f"{_FASHION}train-images-idx3-ubyte.gz",
            26_421_880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        Download(
            f"{_FASHION}train-labels-idx1-ubyte.gz",
            29_515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        Download(
            f"{_FASHION}t10k-images-idx3-ubyte.gz",
            4_422_102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        Download(
            f"{_FASHION}t10k-labels-idx1-ubyte.gz",
            5_148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
)

_EMNIST_BYCLASS = PublishedSet(
    name="emnist-byclass",
    format="idx",
    classes=tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase),
    train_files=(
        PublishedFile(
            "emnist-byclass-train-images-idx3-ubyte", "md5:712dda0bd6f00690f32236ae4325c377", of_gzip=True
        ),
        PublishedFile(
            "emnist-byclass-train-labels-idx1-ubyte", "md5:ee299a3ee5faf5c31e9406763eae7e43", of_gzip=True
        ),
    ),
    test_files=(
        PublishedFile(
            "emnist-byclass-test-images-idx3-ubyte", "md5:1435209e34070a9002867a9ab50160d7", of_gzip=True
        ),
        PublishedFile(
            "emnist-byclass-test-labels-idx1-ubyte", "md5:7a0f934bd176c798ecba96b36fda6657", of_gzip=True
        ),
    ),
    train_count=697_932,
    test_count=116_323,
    licence="US government work (NIST)",
    page="https://www.nist.gov/itl/products-and-services/emnist-dataset",
    downloads=(
        Download(
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            561_753_746,
            "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
        ),
    ),
    folder="gzip",
    transposed=True,
)

_CIFAR10 = PublishedSet(
    name="cifar10",
    format="cifar",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    train_files=tuple(
        PublishedFile(f"data_batch_{number}.bin", f"sha256:{digits}")
        for number, digits in enumerate(
            (
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            ),
            start=1,
        )
    ),
    test_files=(
        PublishedFile(
            "test_batch.bin", "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"
        ),
    ),
    train_count=50_000,
    test_count=10_000,
    licence=_CIFAR_LICENCE,
    page=f"{_KRIZHEVSKY}cifar.html",
    downloads=(
        Download(
            f"{_KRIZHEVSKY}cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    folder="cifar-10-batches-bin",
    pickled=("cifar-10-batches-py", "data_batch_1"),
)

_CIFAR100 = PublishedSet(
    name="cifar100",
    format="cifar",
    classes=tuple(_CIFAR100_CLASSES.split()),
    train_files=(PublishedFile("train.bin", "md5:6172c7755cfe09b2fe270c85cebc1b15"),),
    test_files=(PublishedFile("test.bin", "md5:4499cfba6c016c1be1438163640a0898"),),
    train_count=50_000,
    test_count=10_000,
    licence=_CIFAR_LICENCE,
    page=f"{_KRIZHEVSKY}cifar.html",
    downloads=(
        Download(
            f"{_KRIZHEVSKY}cifar-100-binary.tar.gz",
            168_513_733,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
    folder="cifar-100-binary",
    pickled=("cifar-100-python", "train"),
    label_bytes=2,
)

PUBLISHED: dict[str, PublishedSet] = {
    one.name: one for one in (_FASHION_MNIST, _EMNIST_BYCLASS, _CIFAR10, _CIFAR100)
}
