"""The command line. Every command takes a recipe: a name from `holdfast list recipes` or the path of a .toml file."""

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.members import unknown
from holdfast.recipes import certificate, schema, source, toml
from holdfast.run import listing
from holdfast.run.options import (
    Against,
    Attacks,
    Changes,
    Data,
    DataDir,
    Device,
    Markdown,
    Mean,
    Method,
    Model,
    Out,
    Over,
    Recipe,
    Sampler,
    Samples,
    Seed,
    Size,
    Std,
    Trials,
    Weights,
    check_file,
    check_subject,
)
from holdfast.run.progress import Progress

if TYPE_CHECKING:
    from holdfast.run.study import Workshop

BAD_INPUT, FAILED, STOPPED = 2, 1, 130

app = typer.Typer(
    help="Train classifiers whose representation holds still under attack, and show honestly whether it does.\n\n"
    "Start with `holdfast run quickstart`. Every command takes a RECIPE: a name from `holdfast list recipes` or the "
    "path of a .toml file; `holdfast show RECIPE` prints it with every default written out and --set changes it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 failed while running, 2 bad input, 130 interrupted (run again to go on).",
)


@app.callback()
def _main(
    show: Annotated[bool, typer.Option("--traceback", help="Show where an error came from, for bug reports.")] = False,
) -> None:
    os.environ["HOLDFAST_TRACEBACK"] = "1" if show else os.environ.get("HOLDFAST_TRACEBACK", "")


def _workshop(
    recipe: schema.Recipe, out: Path | None, data_dir: Path | None, device: str, progress: Progress
) -> "Workshop":
    from holdfast.run.study import Workshop  # imports the training engine; --help must not wait for it

    return Workshop.open(recipe, _out(recipe, out), data_dir, device, progress.tell)


def _load(recipe: str, changes: list[str]) -> schema.Recipe | certificate.CertificateRecipe:
    certifies = certificate.is_certificate(source.table(recipe))
    return certificate.load(recipe, changes) if certifies else schema.load(recipe, changes)


def _out(recipe: schema.Recipe | certificate.CertificateRecipe, out: Path | None) -> Path:
    return Path("runs") / recipe.name if out is None else out


@app.command()
def run(
    recipe: Recipe,
    out: Out = None,
    data_dir: DataDir = None,
    changes: Changes = [],  # noqa: B006
    device: Device = "auto",
) -> None:
    """Train what is missing, evaluate, and write the report; run again to go on where it stopped."""
    from holdfast.run.study import report as write_report

    plan = schema.load(recipe, changes)
    with Progress() as progress:
        shop = _workshop(plan, out, data_dir, device, progress)
        shop.rehearse(shop.chosen(None, None))
        for method, seed in shop.chosen(None, None):
            shop.train(method, seed)
        for method, seed in shop.chosen(None, None):
            shop.evaluate(method, seed)
    _print_table(plan, shop.out)
    print(f"report: {write_report(plan, shop.out)}")


@app.command()
def train(
    recipe: Recipe,
    method: Method = None,
    seed: Seed = None,
    out: Out = None,
    data_dir: DataDir = None,
    changes: Changes = [],  # noqa: B006
    device: Device = "auto",
) -> None:
    """Train the models of a recipe; a stopped run goes on and ends with the same bits."""
    plan = schema.load(recipe, changes)
    with Progress() as progress:
        shop = _workshop(plan, out, data_dir, device, progress)
        shop.rehearse(shop.chosen(method, seed))
        for name, number in shop.chosen(method, seed):
            shop.train(name, number)
    print(f"weights: {shop.out}")


@app.command()
def evaluate(
    recipe: Annotated[str | None, typer.Argument(help="A recipe name or the path of a .toml file.")] = None,
    method: Method = None,
    seed: Annotated[
        int | None, typer.Option(help="Only this seed of the recipe; with --model, the seed of the attacks.")
    ] = None,
    out: Out = None,
    data_dir: DataDir = None,
    changes: Changes = [],  # noqa: B006
    device: Device = "auto",
    model: Model = None,
    weights: Weights = None,
    data: Data = None,
    size: Size = None,
    mean: Mean = None,
    std: Std = None,
    threat: Against = None,
    attack: Attacks = [],  # noqa: B006
    samples: Samples = None,
) -> None:
    """Attack trained models and write records; attacks and samples already done are not repeated.

    Your own model needs no recipe:

    holdfast evaluate --model nets:build --weights best.pt --data imagefolder:photos --threat linf:8/255
    """
    asked: dict[str, Any] = {"weights": weights, "data": data, "size": size, "mean": mean, "std": std}
    asked |= {"threat": threat, "attack": attack, "samples": samples}
    check_subject(recipe, model, {"method": method, "set": changes}, asked)
    if model is not None:
        _evaluate_own(model, asked | {"seed": seed}, out, data_dir, device)
        return
    plan = schema.load(str(recipe), changes)
    with Progress() as progress:
        shop = _workshop(plan, out, data_dir, device, progress)
        for name, number in shop.chosen(method, seed):
            shop.evaluate(name, number)
    _print_table(plan, shop.out)
    print(f"records: {shop.out}")


def _evaluate_own(model: str, asked: dict[str, Any], out: Path | None, data_dir: Path | None, device: str) -> None:
    from holdfast.report.text import text_table
    from holdfast.run import own

    plan = own.read(model, **asked)
    with Progress() as progress:
        place = Path("runs") / plan.name if out is None else out
        records, page = own.evaluate_own(plan, place, data_dir, device, progress.tell)
    print(text_table(own.study_of(plan, records)))
    print(f"report: {page}")


@app.command()
def attack(
    recipe: Recipe,
    method: Annotated[str, typer.Argument(help="The method of the recipe whose model is attacked.")],
    name: Annotated[str, typer.Argument(metavar="ATTACK", help="An attack of the recipe.")],
    save: Annotated[Path, typer.Option("--save", help="The .npz file for the adversarial examples.")],
    seed: Annotated[int | None, typer.Option("--seed", help="Which seed's model; default the recipe's first.")] = None,
    levels: Annotated[
        int | None,
        typer.Option("--round", help="Round to multiples of 1/LEVELS (255: as image files do), judge again."),
    ] = None,
    out: Out = None,
    data_dir: DataDir = None,
    changes: Changes = [],  # noqa: B006
    device: Device = "auto",
) -> None:
    """Save adversarial examples of a trained model: x, x_adv, y, label, fooled, distance as one .npz file."""
    from holdfast.run.examples import save_examples

    plan = schema.load(recipe, changes)
    if name not in plan.attacks:
        raise ValueError(unknown(f"attack {name!r}", name, plan.attacks))
    if levels is not None and levels < 1:
        raise ValueError(f"--round is {levels} but needs at least one level; 255 rounds as image files do")
    check_file(save, "--save")
    with Progress() as progress:
        shop = _workshop(plan, out, data_dir, device, progress)
        ((_, number),) = shop.chosen(method, plan.seeds[0] if seed is None else seed)
        said = save_examples(shop, method, number, name, levels, save)
    print(said)


@app.command()
def report(
    recipe: Recipe,
    out: Out = None,
    markdown: Markdown = None,
    changes: Changes = [],  # noqa: B006
) -> None:
    """Write the page again from the records; no model is touched."""
    from holdfast.run.rewrite import rewrite

    plan = _load(recipe, changes)
    if markdown is not None:
        check_file(markdown, "--markdown")
    print(f"report: {rewrite(plan, _out(plan, out), changes, markdown)}")


@app.command()
def sweep(
    recipe: Recipe,
    over: Over = [],  # noqa: B006
    method: Annotated[str | None, typer.Option("--method", help="The method to sweep; one sweep is of one.")] = None,
    trials: Trials = None,
    sampler: Sampler = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="The recipe's seed that every trial is trained with; default its first."),
    ] = None,
    out: Out = None,
    data_dir: DataDir = None,
    changes: Changes = [],  # noqa: B006
    device: Device = "auto",
) -> None:
    """Train one method with many values of some keys and find the best on validation samples; no test sample is used.

    holdfast sweep quickstart --method AT --over train.optimizer.lr=1e-4..1e-1:log --over 'train.batch=[32,64]'

    The same command goes on after a stop, and several at once share the trials. OUT/sweep/METHOD holds the table of
    all trials (trials.csv, trials.md), the page (sweep.html) and the models. The last line trains the best one.
    """
    from holdfast.report.sweep_page import text_sweep
    from holdfast.run import sweep as sweeps

    plan = sweeps.plan(recipe, changes, over=over, method=method, seed=seed, sampler=sampler, trials=trials)
    plan = plan.called_with(data_dir, device)
    with Progress() as progress:
        shop = _workshop(plan.recipe, out, data_dir, device, progress)
        found = sweeps.run(plan, shop)
    print(text_sweep(found))
    print(f"report: {shop.out / 'sweep' / plan.method / 'sweep.html'}")
    if found.command:
        print(f"train the best: {found.command}")


@app.command()
def certify(
    recipe: Recipe,
    metric: Annotated[str | None, typer.Option("--metric", help="Only this metric of the recipe; default all.")] = None,
    seed: Seed = None,
    out: Out = None,
    data_dir: DataDir = None,
    markdown: Markdown = None,
    changes: Changes = [],  # noqa: B006
    device: Device = "auto",
) -> None:
    """Learn the metrics of a recipe and prove radii for their nearest neighbours; run again to go on."""
    from holdfast.report.text import text_table
    from holdfast.run.certify import run as certify_all
    from holdfast.run.markdown import write_certificates

    plan = certificate.load(recipe, changes)
    if markdown is not None:
        check_file(markdown, "--markdown")
    with Progress() as progress:
        study = certify_all(plan, _out(plan, out), data_dir, progress.tell, metric, seed, device)
    print(text_table(study))
    if markdown is not None:
        write_certificates(study, changes, markdown)
    print(f"report: {_out(plan, out) / 'report.html'}")


@app.command("list")
def list_(
    kind: Annotated[
        str, typer.Argument(help="attacks, methods, models, heads, learners, data or recipes.")
    ] = "recipes",
) -> None:
    """What recipes can name, with a sentence on each; the recipes themselves where nothing is asked."""
    if kind not in listing.KINDS:
        raise ValueError(unknown(f"kind {kind!r}", kind, listing.KINDS))
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, words in listing.KINDS[kind]():
        table.add_row(f"[bold]{escape(name)}[/bold]", escape(words))
    Console().print(table)


@app.command()
def show(recipe: Recipe, changes: Changes = []) -> None:  # noqa: B006
    """Print a recipe with every default written out; the output is a recipe itself.

    The defaults of encoders and heads stand in `holdfast list models` and `holdfast list heads`.
    """
    print(toml.dumps(_load(recipe, changes).table()), end="")


def _print_table(plan: schema.Recipe, out: Path) -> None:
    from holdfast.report.text import text_table
    from holdfast.run.study import finished, study_of

    print(text_table(study_of(plan, finished(plan, out))))


def main() -> None:
    """Run the command line; an error is one sentence and an exit code scripts can trust."""
    try:
        app()
    except SystemExit as end:  # typer's own words for a misspelt command or option, and its codes
        if end.code == STOPPED:
            _say("stopped; run the same command again to go on")
        raise
    except (ValueError, KeyError, FileNotFoundError) as error:
        _fail(error, BAD_INPUT)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        _fail(OSError(f"{error.strerror or error}{where}; free or name another place for --out and run again"), FAILED)
    except (FloatingPointError, RuntimeError, MemoryError, ImportError) as error:
        _fail(error, FAILED)
    except Exception as error:
        _say("this is a mistake in holdfast; please report it with what --traceback before the command shows")
        _fail(error, FAILED)


def _fail(error: Exception, code: int) -> None:
    if os.environ.get("HOLDFAST_TRACEBACK"):
        traceback.print_exception(error)
    said = error.args[0] if isinstance(error, KeyError) and error.args else error
    _say(" ".join(str(said).split()) or type(error).__name__)
    sys.exit(code)


def _say(sentence: str) -> None:
    shown = "".join(
        c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in sentence
    )  # a file's name may be hostile
    print(f"holdfast: {shown}", file=sys.stderr)
