"""The moderator's side on Flower: a ServerApp that runs our own round loop over the grid.

Run configuration of a simulation: `experiment` (a TOML file; left out: the demo's), `out` (the results folder, resumed
if it was started), `deadline` (seconds after which a silo that has not replied is absent). Of a real federation:
`folder` (the moderator's, with the contract in it).
"""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from feddig.experiment.experiment import Experiment
from feddig.experiment.toml import read_experiment, write_experiment
from feddig.federation.moderator import moderate_federation
from feddig.federation.simulation_engine import GridEngine
from feddig.runs.build import Simulation
from feddig.runs.result import Result
from feddig.runs.results_folder import ResultsFolder
from feddig.runs.run import resume, run

DEADLINE = 600.0

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment or the federation that the run configuration names."""
    config = context.run_config
    if config.get("folder"):
        moderate_federation(grid, Path(str(config["folder"])))
        return
    experiment = read_experiment(str(config["experiment"]) if config.get("experiment") else None)
    out = Path(str(config.get("out") or "results/flower"))
    moderate(grid, experiment, out, deadline=float(config.get("deadline") or DEADLINE))


def moderate(grid: Grid, experiment: Experiment, out: Path, *, deadline: float = DEADLINE) -> Result:
    """Run or resume an experiment over the grid, and return its result."""

    def connect(simulation: Simulation, folder: ResultsFolder) -> GridEngine:
        text = write_experiment(simulation.experiment)
        return GridEngine(grid, simulation.absence, folder, experiment=text, deadline=deadline)

    if ResultsFolder(out).started:
        return resume(out, connect=connect)
    return run(experiment, out, connect=connect)
