"""The public names of `import feddig`: these, no others, and without importing torch."""

import subprocess
import sys

import pytest

import feddig

PROMISED = [
    "Absence",
    "Comparison",
    "Dataset",
    "Digest",
    "Experiment",
    "FedDigError",
    "Networks",
    "Partition",
    "Result",
    "__version__",
    "compare",
    "dataset_from",
    "dataset_from_arrays",
    "demo_experiment",
    "draw_absence",
    "draw_partition",
    "grid",
    "load_dataset",
    "make_digest",
    "partition_from",
    "read_digest",
    "read_experiment",
    "read_result",
    "resume",
    "run",
    "run_grid",
    "write_digest",
    "write_experiment",
]


def in_a_fresh_process(program: str) -> str:
    """Run a program in a new process, where feddig is not imported yet."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names_are_these_and_sorted() -> None:
    assert feddig.__all__ == sorted(feddig.__all__) == PROMISED


@pytest.mark.parametrize("name", PROMISED)
def test_every_name_is_that_of_its_object(name: str) -> None:
    found = getattr(feddig, name)
    if name != "__version__":
        assert found.__name__ == name
        assert found.__module__.startswith("feddig.")
        assert found.__doc__, "help() shows a docstring"


def test_a_name_that_does_not_exist_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'feddig' has no attribute 'runn'"):
        feddig.runn  # noqa: B018


def test_import_star_imports_all_names() -> None:
    found: dict[str, object] = {}
    exec("from feddig import *", found)
    assert sorted(name for name in found if name != "__builtins__") == PROMISED


def test_dir_lists_the_public_names_and_no_others() -> None:
    program = "import feddig\nprint([name for name in dir(feddig) if not name.startswith('_')])"
    assert in_a_fresh_process(program) == str([name for name in PROMISED if not name.startswith("_")])


@pytest.mark.parametrize("name", ["feddig", "feddig.cli"])
def test_torch_is_not_imported_before_it_is_needed(name: str) -> None:
    assert in_a_fresh_process(f"import sys, {name}\nprint('torch' in sys.modules)") == "False"


def test_the_version_is_that_of_the_installed_package() -> None:
    program = "import feddig, importlib.metadata as m\nprint(feddig.__version__ == m.version('feddig'))"
    assert in_a_fresh_process(program) == "True"
