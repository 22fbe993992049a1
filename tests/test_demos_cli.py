"""`oal demos`: what the commands print, write and refuse."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import oal.demos
from oal.cli.demos import app
from oal.demos import Demos, Trajectory
from oal.errors import InputError


def run(*arguments: object) -> str:
    """Run a command in this process and return what it printed; errors are raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def demos() -> Demos:
    draw = np.random.default_rng(0)
    trajectories = (
        Trajectory(draw.normal(size=(n + 1, 3)), draw.uniform(-2, 2, (n, 1)), np.full(n, float(n)), truncated=True)
        for n in (5, 9, 7)
    )
    return Demos(tuple(trajectories), "Pendulum-v1", action_space=spaces.Box(-2, 2, (1,)), source="a test")


@pytest.fixture
def path(demos, tmp_path) -> Path:
    demos.save(tmp_path / "demos.npz")
    return tmp_path / "demos.npz"


def test_show_says_what_is_in_the_file(path, demos):
    shown = run("show", path, "--episodes")
    lines = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in shown.splitlines() if "  " in line}
    assert lines["format"] == "oal"
    assert lines["environment"] == "Pendulum-v1"
    assert lines["steps"] == "21"
    assert lines["return"] == "51.7 ± 22.9, from 25 to 81"
    assert lines["endings"] == "0 terminated, 3 truncated"
    assert lines["content"] == f"sha256 {demos.content_hash[:16]}..."
    assert "Episodes" in shown


def test_show_as_json_has_every_figure(path, demos):
    shown = json.loads(run("show", path, "--json"))
    assert shown["statistics"]["observations"]["mean"] == pytest.approx(demos.observations.mean(0))
    assert shown["episode_returns"] == [25.0, 81.0, 49.0]
    assert shown["content_hash"] == demos.content_hash


def test_show_warns_in_one_line(path):
    result = CliRunner().invoke(app, ["show", str(path), "--env", "MountainCarContinuous-v0"])
    assert isinstance(result.exception, InputError)
    loud = Demos((Trajectory(np.zeros((3, 3)), np.full((2, 1), 5.0)),))
    loud.save(path)
    result = CliRunner().invoke(app, ["show", str(path), "--env", "Pendulum-v1"])
    assert "warning: Pendulum-v1: 2 of 2 action values lie outside its bounds, first 5" in result.output
    with pytest.raises(InputError, match="2 of 2"):
        run("show", path, "--env", "Pendulum-v1", "--strict")


def test_convert_selects_and_writes(path, demos, tmp_path):
    run("convert", path, tmp_path / "all.hdf5")
    assert oal.demos.load(tmp_path / "all.hdf5") == demos
    run("convert", path, tmp_path / "best.npz", "--to", "sb", "--best", 2)
    assert oal.demos.load(tmp_path / "best.npz") == demos.best(2)
    run("convert", path, tmp_path / "first.npz", "--first", 1, "--every", 2)
    assert oal.demos.load(tmp_path / "first.npz") == demos.first(1).subsample(2)
    run("convert", path, tmp_path / "random.npz", "--random", 2, "--seed", 3)
    assert oal.demos.load(tmp_path / "random.npz") == demos.random(2, seed=3)
    run("convert", path, tmp_path / "limited.npz", "--time-limit", 9)
    assert [t.terminated for t in oal.demos.load(tmp_path / "limited.npz")] == [True, False, True]


def test_convert_gives_up_last_steps_only_when_told(path, demos, tmp_path):
    demos.without_final().save(path)
    with pytest.raises(InputError, match="--drop-last-step"):
        run("convert", path, tmp_path / "imitation.npz", "--to", "imitation")
    run("convert", path, tmp_path / "imitation.npz", "--to", "imitation", "--drop-last-step")
    assert oal.demos.load(tmp_path / "imitation.npz").lengths.tolist() == [4, 8, 6]


def test_convert_overwrites_only_when_told(path, tmp_path):
    (tmp_path / "taken.npz").write_text("precious")
    with pytest.raises(InputError, match="exists already: choose another name or add --overwrite"):
        run("convert", path, tmp_path / "taken.npz")
    assert (tmp_path / "taken.npz").read_text() == "precious"
    run("convert", path, tmp_path / "taken.npz", "--overwrite")
    with pytest.raises(InputError, match="exclude each other"):
        run("convert", path, tmp_path / "new.npz", "--first", 1, "--best", 1)


@pytest.mark.parametrize("kind", ["continuous", "discrete", "no rewards", "one step", "constant"])
def test_plot_draws_a_picture(kind, demos, tmp_path):
    import matplotlib.image

    several = {
        "continuous": demos,
        "discrete": Demos((Trajectory(np.zeros((5, 2)), np.array([0, 2, 2, 1])),)),
        "no rewards": Demos((Trajectory(np.ones((5, 200)), np.zeros((5, 2))),), endings_known=False),
        "one step": Demos((Trajectory(np.full((1, 1), 1e9), np.zeros((1, 1)), np.zeros(1)),)),
        "constant": Demos((Trajectory(np.ones((3, 4, 4), np.uint8), np.ones((3, 2))),)),
    }
    several[kind].save(tmp_path / "demos.npz")
    run("plot", tmp_path / "demos.npz", "--out", tmp_path / "picture.png")
    picture = matplotlib.image.imread(tmp_path / "picture.png")
    assert picture.shape[:2] == (1125, 1650)
    panels = [half for row in np.array_split(picture, 2) for half in np.array_split(row, 2, axis=1)]
    assert all(panel[..., :3].std() > 0.02 for panel in panels)
    with pytest.raises(InputError, match=r"must end in \.png"):
        run("plot", tmp_path / "demos.npz", "--out", tmp_path / "picture.txt")


def test_record_random_actions(tmp_path):
    run("record", "random", "--env", "CartPole-v1", "--episodes", 3, "--seed", 5, "--out", tmp_path / "a.npz")
    run("record", "random", "--env", "CartPole-v1", "--episodes", 3, "--seed", 5, "--out", tmp_path / "b.npz")
    run("record", "random", "--env", "CartPole-v1", "--episodes", 3, "--seed", 6, "--out", tmp_path / "c.npz")
    a, b, c = (oal.demos.load(tmp_path / f"{name}.npz") for name in "abc")
    assert a == b
    assert a.content_hash != c.content_hash
    assert a.env_id == "CartPole-v1"
    assert a.has_finals
    assert all(trajectory.terminated for trajectory in a)
    assert "--seed 5" in a.metadata["command"]
    with pytest.raises(InputError, match="exists already"):
        run("record", "random", "--env", "CartPole-v1", "--out", tmp_path / "a.npz")
    with pytest.raises(InputError, match="add --env ID"):
        run("record", "random", "--out", tmp_path / "d.npz")


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_record_a_saved_policy(activation, tmp_path):
    from oal import envs
    from oal.deep.nets import Layer
    from oal.deep.policy import Policy

    env = envs.make("Pendulum-v1")
    spec = envs.describe(env)
    draw = np.random.default_rng(0)
    layers = tuple(
        Layer(draw.normal(size=(rows, columns)).astype(np.float32) * 0.3, np.zeros(columns, np.float32))
        for rows, columns in ((3, 8), (8, 2))
    )
    policy = Policy(spec, layers, activation=activation)
    policy.save(tmp_path / "run" / "policy.safetensors")
    run("record", tmp_path / "run", "--episodes", 1, "--out", tmp_path / "mode.npz")
    run(
        "record",
        tmp_path / "run" / "policy.safetensors",
        "--episodes",
        1,
        "--stochastic",
        "--out",
        tmp_path / "drawn.npz",
    )
    mode, drawn = oal.demos.load(tmp_path / "mode.npz"), oal.demos.load(tmp_path / "drawn.npz")
    expected = policy.codec.decode(policy.act(mode[0].observations[:-1]))
    assert np.allclose(mode.actions, expected, atol=1e-6)
    assert not np.allclose(mode.actions, drawn.actions)
    assert mode.lengths.tolist() == [200]
    assert mode[0].truncated
    observation, _ = env.reset(seed=mode[0].seed)
    assert np.allclose(observation, mode[0].observations[0])
    with pytest.raises(InputError, match="was trained on Pendulum-v1, not on CartPole-v1"):
        run("record", tmp_path / "run", "--env", "CartPole-v1", "--out", tmp_path / "x.npz")
    with pytest.raises(InputError, match="holds no policy"):
        run("record", tmp_path, "--out", tmp_path / "x.npz")


def test_errors_are_one_line_and_exit_code_2(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "from oal.cli import main; main()", "demos", "show", str(tmp_path / "no.npz")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path / 'no.npz'}: there is no such file")
    assert len(done.stderr.splitlines()) == 1


def test_the_command_line_does_not_load_what_it_does_not_need():
    heavy = ["jax", "numba", "gymnasium", "matplotlib", "h5py", "pyarrow", "datasets", "minari"]
    code = f"import sys, oal.cli; sys.exit(' '.join(m for m in {heavy} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
