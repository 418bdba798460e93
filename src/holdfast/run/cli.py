"""The command line. Every command takes a recipe: a name from `holdfast list recipes` or the path of a .toml file."""

import os
import sys
import traceback
from typing import Annotated

import typer

import holdfast
from holdfast.run.commands.analyze import analyze
from holdfast.run.commands.attack import attack
from holdfast.run.commands.certify import certify
from holdfast.run.commands.evaluate import evaluate
from holdfast.run.commands.ledger import ledger
from holdfast.run.commands.list import list_
from holdfast.run.commands.report import report
from holdfast.run.commands.run import run
from holdfast.run.commands.show import show
from holdfast.run.commands.sweep import sweep
from holdfast.run.commands.train import train

BAD_INPUT, FAILED, STOPPED = 2, 1, 130

app = typer.Typer(
    help="Train, attack, measure and certify classifiers under adversarial perturbations.\n\n"
    "Start with `holdfast run quickstart`. Every command takes a RECIPE: a name from `holdfast list recipes` or the "
    "path of a .toml file; `holdfast show RECIPE` prints it with every default filled in, and --set changes it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 failed while running, 2 bad input, 130 interrupted (run again to resume).",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    show: Annotated[
        bool, typer.Option("--traceback", help="Print the traceback of an error, for bug reports.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    os.environ["HOLDFAST_TRACEBACK"] = "1" if show else os.environ.get("HOLDFAST_TRACEBACK", "")


for command in (run, train, evaluate, attack, analyze, report, sweep, certify, ledger, show):
    app.command()(command)
app.command("list")(list_)


def main() -> None:
    """Run the command line; an error is printed as one sentence and sets the exit code."""
    try:
        app()
    except SystemExit as end:  # raised by typer, which has printed its message
        if end.code == STOPPED:
            _print("stopped; run the same command again to resume")
        raise
    except (ValueError, KeyError, FileNotFoundError) as error:
        _fail(error, BAD_INPUT)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        _fail(OSError(f"{error.strerror or error}{where}; free or name another place for --out and run again"), FAILED)
    except (FloatingPointError, RuntimeError, MemoryError, ImportError) as error:
        _fail(error, FAILED)
    except Exception as error:
        _print("this is a mistake in holdfast; please report it with what --traceback before the command shows")
        _fail(error, FAILED)


def _fail(error: Exception, code: int) -> None:
    if os.environ.get("HOLDFAST_TRACEBACK"):
        traceback.print_exception(error)
    message = error.args[0] if isinstance(error, KeyError) and error.args else error
    _print(" ".join(str(message).split()) or type(error).__name__)
    sys.exit(code)


def _print(sentence: str) -> None:
    # names of files may contain control characters, which terminals would execute
    printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in sentence)
    print(f"holdfast: {printable}", file=sys.stderr)
