"""The command line of `feddig`: all commands, and how errors are reported.

Progress goes to standard error, results go to standard output. A user's mistake is one line and exit code 2.
torch is imported only when a command runs.
"""

import difflib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from feddig._version import __version__
from feddig.commands import amend
from feddig.commands.advise import advise_command
from feddig.commands.audit import audit_command
from feddig.commands.compare import compare_command
from feddig.commands.completion import whole_words
from feddig.commands.datasets import datasets_command
from feddig.commands.digest import digest_app
from feddig.commands.encoder import encoder_app
from feddig.commands.evaluate import evaluate_command
from feddig.commands.federation import federation_app
from feddig.commands.figures import figures_command
from feddig.commands.ledger import ledger_app
from feddig.commands.options import INTERRUPTED
from feddig.commands.paper import paper_app
from feddig.commands.predict import predict_command
from feddig.commands.privacy import privacy_command
from feddig.commands.report import report_command
from feddig.commands.run import run_command
from feddig.commands.start import check_command, init_command
from feddig.commands.watch import watch_command
from feddig.errors import FedDigError

BAD_INPUT = 2

UsageError: Any = typer.BadParameter.__bases__[0]
"""What typer raises for mistakes in options: click's class, or that of newer typer's own copy of click."""

app = typer.Typer(
    name="feddig",
    help="Federated learning that remembers silos after they leave.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("init")(init_command)
app.command("check")(check_command)
app.command("run")(run_command)
app.command("compare")(compare_command)
app.command("predict")(predict_command)
app.command("evaluate")(evaluate_command)
app.command("datasets")(datasets_command)
app.add_typer(digest_app, name="digest")
app.add_typer(ledger_app, name="ledger")
app.add_typer(federation_app, name="federation")
for name, command in amend.COMMANDS.items():
    federation_app.command(name)(command)
app.add_typer(encoder_app, name="encoder")
app.command("privacy")(privacy_command)
app.command("report")(report_command)
app.command("watch")(watch_command)
app.command("figures")(figures_command)
app.add_typer(paper_app, name="paper")
app.command("audit")(audit_command)
app.command("advise")(advise_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; report a mistake in one line and exit with code 2."""
    try:
        with whole_words():
            code = app(args=arguments, prog_name="feddig", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            print(error.format_message())
        else:
            said = error.format_message().strip()
            stop = "" if said[-1:] in (".", "?", ")") else "."
            _print_error(_suggest_key(error) or f"{said}{stop} See feddig --help.")
        sys.exit(BAD_INPUT)
    except FedDigError as error:
        _print_error(str(error))
        sys.exit(BAD_INPUT)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _print_error(f"{place}{error.strerror or error}")
        sys.exit(BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        _print_error("interrupted")
        sys.exit(INTERRUPTED)


def _suggest_key(error: Any) -> str | None:
    """Say how a key of the experiment is set, if that is what an unknown option looks like."""
    option = getattr(error, "option_name", "")
    wrong = option.strip("-").replace("-", "_")
    command = getattr(error.ctx, "command", None)
    if not wrong or "overrides" not in [each.name for each in getattr(command, "params", [])]:
        return None
    from feddig.experiment.toml import keys

    names: dict[str, str] = {}
    # of several keys with one name, such as rounds, the one of [training] is meant
    for key in sorted(keys(), key=lambda key: not key.startswith("training.")):
        names.setdefault(key.rpartition(".")[2], key)
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=0.8)
    if not close:
        return None
    return f"{option}: no such option; a key of the experiment is set with --set {names[close[0]]}=VALUE"


def _print_error(text: str) -> None:
    print(f"feddig: error: {' '.join(text.split())}", file=sys.stderr)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"feddig {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass
