"""`holdfast train`: the models of a recipe."""

from holdfast.progress import Progress
from holdfast.recipes import schema
from holdfast.run.commands.options import Changes, DataDir, Device, Method, Out, Recipe, Seed, open_session


def train(
    recipe: Recipe,
    method: Method = None,
    seed: Seed = None,
    out: Out = None,
    data_dir: DataDir = None,
    changes: Changes = [],  # noqa: B006
    device: Device = "auto",
) -> None:
    """Train the models of a recipe; a stopped run resumes and ends with bit-identical weights."""
    from holdfast.run import study

    loaded = schema.load(recipe, changes)
    chosen = study.rows(loaded, ("methods",), method, seed)
    with Progress() as progress:
        session = open_session(loaded, out, data_dir, device, progress)
        study.prepare(session, chosen)
    print(f"weights: {session.out}")
