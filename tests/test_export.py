"""Policies for where oal is not installed: ONNX against onnxruntime, arrays against the reader of the docs."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from games import CONTINUOUS, DICTIONARY, demos_of
from oal.base.folder import RunFolder
from oal.cli import app
from oal.deep.bc import BC, start_members
from oal.deep.export import save_npz, save_onnx
from oal.deep.policy import Policy
from oal.envs import EnvSpec, describe
from oal.errors import InputError, MissingExtraError
from test_own_environment import SPACES, Showing

runtime: Any = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (oal[dev])")
ROOT = Path(__file__).parents[1]
BOX = EnvSpec("Two-v0", "continuous", 5, 4, (-1.0, 0.0, 2.0, -3.0), (1.0, 8.0, 2.5, -1.0), (2, 2), horizon=9)
CHOICE = EnvSpec("Three-v0", "discrete", 5, 3, action_start=4, horizon=9)
PARTS = EnvSpec("Six-v0", "discrete", 5, 6, action_shape=(2,), action_counts=(2, 3), action_starts=(0, -1), horizon=9)


class Scale(NamedTuple):
    mean: np.ndarray
    std: np.ndarray


def drawn_in(values: np.ndarray) -> np.ndarray:
    """Logarithmic beyond five standard deviations."""
    far = np.maximum(np.abs(values), 5.0)
    return np.where(np.abs(values) > 5.0, np.sign(values) * 5.0 * (1.0 + np.log(far / 5.0)), values)


class Scaled(Policy):
    """A policy with a normaliser before its network."""

    normaliser: Any = None

    def act(self, observations: np.ndarray) -> np.ndarray:
        scaled = drawn_in((observations - self.normaliser.mean) / self.normaliser.std)
        return self.actor.mode(scaled.astype(np.float32))


def policy_of(spec: EnvSpec, *, activation: Any = "relu", scaled: bool = False) -> Policy:
    weights = start_members(spec, (16, 8), 1, 3)[0]
    if not scaled:
        return Policy(spec, weights, activation=activation)
    policy = Scaled(spec, weights, activation=activation)
    draw = np.random.default_rng(1)
    size = spec.observation_size
    policy.normaliser = Scale(draw.normal(size=size).astype("f4"), draw.uniform(1e-3, 2, size).astype("f4"))
    return policy


def run_onnx(path: Path, **inputs: Any) -> dict[str, np.ndarray]:
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def reader() -> Any:
    """The reader that docs/deploying.md prints."""
    names: dict[str, Any] = {}
    (code,) = re.findall(r"```python\n(import json\n.*?)```", (ROOT / "docs" / "deploying.md").read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 30
    assert "oal" not in code.replace("oal_policy", "")
    exec(compile(code, "deploying.md", "exec"), names)
    return names["Policy"]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("spec", [BOX, CHOICE, PARTS], ids=["continuous", "discrete", "parts"])
def test_both_files_act_as_the_policy_does(
    tmp_path: Path, rng: Any, spec: EnvSpec, activation: Any, scaled: bool
) -> None:
    policy = policy_of(spec, activation=activation, scaled=scaled)
    observations = rng.normal(size=(50, 5)).astype(np.float32)
    expected = policy.predict(observations)[0]
    save_onnx(policy, tmp_path / "policy.onnx")
    save_npz(policy, tmp_path / "policy.npz")
    outputs = run_onnx(tmp_path / "policy.onnx", observation=observations)
    np.testing.assert_allclose(outputs["action"], expected, rtol=1e-5, atol=1e-5)
    assert outputs["action"].shape == expected.shape
    again = reader()(tmp_path / "policy.npz")
    np.testing.assert_allclose(again(observations), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(again(observations[0]), expected[0], rtol=1e-5, atol=1e-5)
    seen = observations
    if scaled:
        seen = drawn_in((observations - policy.normaliser.mean) / policy.normaliser.std)  # type: ignore[attr-defined]
    raw = policy.actor.outputs(seen.astype(np.float32))
    parts = {"mean": raw[:, :4], "log_std": raw[:, 4:]} if spec.kind == "continuous" else {"logits": raw}
    for name, values in parts.items():
        np.testing.assert_allclose(outputs[name], values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_parts_of_a_dictionary_are_inputs_under_their_keys(tmp_path: Path, space: spaces.Space) -> None:
    policy = policy_of(describe(Showing(space), horizon=5))
    space.seed(5)
    samples = [space.sample() for _ in range(4)]
    batch: Any = gym.vector.utils.concatenate(space, samples, gym.vector.utils.create_empty_array(space, 4))
    expected = policy.predict(batch)[0]

    def named(part: Any, inner: spaces.Space, name: str = "") -> dict[str, np.ndarray]:
        if isinstance(inner, spaces.Dict):
            keys: Any = inner.spaces
        elif isinstance(inner, spaces.Tuple):
            keys = range(len(inner.spaces))
        else:
            whole = isinstance(inner, (spaces.Discrete, spaces.MultiDiscrete))
            return {name or "observation": np.asarray(part).astype(np.int64 if whole else np.float32)}
        found: dict[str, np.ndarray] = {}
        for key in keys:
            found |= named(part[key], inner[key], f"{name}/{key}" if name else str(key))  # type: ignore[index]
        return found

    inputs = named(batch, space)
    save_onnx(policy, tmp_path / "policy.onnx")
    save_npz(policy, tmp_path / "policy.npz")
    np.testing.assert_allclose(run_onnx(tmp_path / "policy.onnx", **inputs)["action"], expected, rtol=1e-5, atol=1e-5)
    given = inputs if len(inputs) > 1 or isinstance(space, (spaces.Dict, spaces.Tuple)) else inputs["observation"]
    np.testing.assert_allclose(reader()(tmp_path / "policy.npz")(given), expected, rtol=1e-5, atol=1e-5)


def test_a_part_with_an_outputs_name_is_named(tmp_path: Path) -> None:
    space = spaces.Dict({"action": spaces.Box(-1, 1, (2,)), "state": spaces.Box(-1, 1, (3,))})
    policy = policy_of(describe(Showing(space), horizon=5))
    with pytest.raises(InputError, match=r"a part of its observations is called 'action', as an output"):
        save_onnx(policy, tmp_path / "policy.onnx")
    save_npz(policy, tmp_path / "policy.npz")


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    import onnx

    policy = BC(DICTIONARY, demos_of(DICTIONARY), hidden=(8,)).policy()
    save_onnx(policy, tmp_path / "policy.onnx")
    said = {prop.key: json.loads(prop.value) for prop in onnx.load(tmp_path / "policy.onnx").metadata_props}
    assert (said["environment"], said["inputs"]) == (DICTIONARY, ["one", "place"])


def test_a_policy_is_loaded_and_exported_without_its_environment(tmp_path: Path) -> None:
    policy_of(BOX).save(tmp_path / "policy")
    words = ["export", str(tmp_path / "policy"), "--onnx", str(tmp_path / "p.onnx"), "--npz", str(tmp_path / "p.npz")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (done.output, done.exception)
    assert (tmp_path / "p.onnx").exists()
    code = (
        "import sys; sys.modules['oal'] = None\n"
        + re.search(r"```python\n(import json\n.*?)```", (ROOT / "docs" / "deploying.md").read_text(), re.DOTALL)[1]
    )  # type: ignore[index]
    code += f"print(Policy({str(tmp_path / 'p.npz')!r})(np.zeros(5)).shape)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "(2, 2)"


def test_the_command_takes_a_run_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {"env": CONTINUOUS}, {})
    BC(CONTINUOUS, demos_of(CONTINUOUS), hidden=(8,)).save(folder.policy)
    folder.release()
    oal = CliRunner()
    assert oal.invoke(app, ["export", str(tmp_path / "run"), "--npz", str(tmp_path / "a.npz")]).exit_code == 0
    for words, says in (
        ([], "say where to"),
        (["--onnx", str(tmp_path / "a.pt")], "must end in .onnx"),
        (["--npz", str(tmp_path / "a.onnx")], "must end in .npz"),
    ):
        assert says in str(oal.invoke(app, ["export", str(tmp_path / "run"), *words]).exception)


def test_onnx_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"oal\[onnx\]"):
        save_onnx(policy_of(BOX), tmp_path / "policy.onnx")
    with pytest.raises(InputError):
        save_npz(policy_of(BOX), tmp_path / "policy")
