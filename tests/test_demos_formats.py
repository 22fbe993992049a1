"""Files of demonstrations: what others wrote is read, what is written comes back exactly, and others can read it."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import oal.demos
from oal.demos import FORMATS, Demos, Trajectory, places
from oal.demos.record import record_encoded
from oal.errors import InputError, MissingExtraError

SHARED = Path(__file__).parents[2] / "shared" / "demos"
NEEDS_FINALS = ("imitation", "hf", "minari")


@pytest.fixture(autouse=True)
def minari_store(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def shared_table() -> list[tuple[str, int, float]]:
    """The files, episodes and mean returns that the README of the shared demonstrations states."""
    if not (SHARED / "README.md").exists():
        return []
    rows = re.findall(
        r"^\| (\S+\.npz) \|.*?\| (\d+) \| (?:about )?(-?\d+) \|", (SHARED / "README.md").read_text(), re.M
    )
    return [(name, int(episodes), float(mean)) for name, episodes, mean in rows]


@pytest.mark.skipif(not shared_table(), reason="the shared demonstrations are not beside the repository")
def test_every_shared_file_is_in_the_table():
    assert {name for name, *_ in shared_table()} == {str(p.relative_to(SHARED)) for p in SHARED.rglob("*.npz")}


@pytest.mark.skipif(not shared_table(), reason="the shared demonstrations are not beside the repository")
@pytest.mark.parametrize("name, episodes, mean", shared_table() or [("", 0, 0.0)])
def test_shared_files_have_the_returns_their_readme_states(name, episodes, mean):
    demos = oal.demos.load(SHARED / name)
    assert len(demos) == episodes
    assert demos.returns is not None
    assert demos.returns.mean() == pytest.approx(mean, abs=1.0)
    assert demos.has_finals == (not name.startswith("authors"))
    assert demos.endings_known == name.startswith("v5")


# Exact round trips


def kinds_of_demos() -> dict[str, Demos]:
    """Demonstrations of every shape and with every gap that files must keep."""
    draw = np.random.default_rng(3)

    def episodes(lengths=(4, 1, 6), *, shape=(3,), dtype=np.float32, final=True, rewards=True, actions=None, **same):
        made = []
        for i, length in enumerate(lengths):
            observations = draw.normal(size=(length + final, *shape)) * 50
            acts = draw.normal(size=(length, 2)).astype(dtype) if actions is None else actions(length)
            ending = {"terminated": i % 3 == 0, "truncated": i % 3 == 1} if "truncated" not in same else {}
            reward = draw.normal(size=length).astype(dtype) if rewards else None
            made.append(Trajectory(observations.astype(dtype), acts, reward, **ending, **same))
        return tuple(made)

    box, discrete = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(5)
    choices = {"actions": lambda length: draw.integers(5, size=length)}
    plain = episodes()
    return {
        "float32": Demos(plain, "Some-v0", box, spaces.Box(-9, 9, (2,)), "a test", {"steps": 3, "tags": ["x", None]}),
        "float64": Demos(episodes(dtype=np.float64)),
        "discrete": Demos(episodes(**choices), "CartPole-v9", box, discrete),
        "whole-number observations": Demos(
            tuple(Trajectory(draw.integers(7, size=n + 1), draw.integers(5, size=n)) for n in (3, 2)),
            observation_space=spaces.Discrete(7),
            action_space=discrete,
        ),
        "pictures": Demos(
            tuple(Trajectory(draw.integers(256, size=(n + 1, 4, 3), dtype=np.uint8), np.zeros((n, 1))) for n in (3, 2)),
            observation_space=spaces.Box(0, 255, (4, 3), np.uint8),
        ),
        "no rewards": Demos(episodes(rewards=False)),
        "no final observations": Demos(episodes(final=False), endings_known=False),
        "some final observations": Demos((*plain, *episodes((3,), final=False), *episodes((2, 2)))),
        "thinned": Demos(episodes((7, 5)), "Some-v0").subsample(2),
        "seeds and states": Demos(
            (
                *episodes((3,), seed=7, initial_state={"qpos": [0.1, 1 / 3], "qvel": []}),
                *episodes((2,), seed=2**40),
                *episodes((2,), initial_state={}),
            )
        ),
        "ended twice": Demos(episodes((3, 2), terminated=True, truncated=True)),
        "one step": Demos(episodes((1,))),
    }


KINDS = kinds_of_demos()


def target_of(format_name: str, folder: Path) -> str:
    names = {"hdf5": "demos.hdf5", "hf": "folder"}
    return "minari:test/demos-v0" if format_name == "minari" else str(folder / names.get(format_name, "demos.npz"))


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_comes_back_exactly(kind, format_name, tmp_path):
    demos, target = KINDS[kind], target_of(format_name, tmp_path)
    if format_name in NEEDS_FINALS and not demos.has_finals:
        with pytest.raises(InputError, match="needs the observation after the last action, which episode"):
            demos.save(target, format=format_name)
        assert not (tmp_path / "folder").exists()
        assert not (tmp_path / "demos.npz").exists()
        return
    demos.save(target, format=format_name)
    back = oal.demos.load(target)
    assert back == demos
    assert back.content_hash == demos.content_hash
    assert oal.demos.detect(target) == format_name
    assert not list(tmp_path.glob("*.part*"))


def test_a_chain_through_all_formats_loses_nothing(tmp_path):
    first = now = KINDS["float32"]
    for i, format_name in enumerate((*FORMATS, *reversed(FORMATS))):
        folder = tmp_path / str(i)
        target = f"minari:chain/n{i}-v0" if format_name == "minari" else target_of(format_name, folder)
        now.save(target, format=format_name)
        now = oal.demos.load(target)
    assert now == first


def test_the_same_demonstrations_give_the_same_bytes(tmp_path):
    KINDS["float32"].save(tmp_path / "a.npz")
    KINDS["float32"].save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


# Others read ours


@pytest.mark.parametrize("format_name", ["oal", "sb", "imitation"])
def test_our_archives_are_plain_arrays_to_numpy(format_name, tmp_path):
    KINDS["float32"].save(tmp_path / "demos.npz", format=format_name)
    with np.load(tmp_path / "demos.npz", allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    assert json.loads(str(arrays["about"]))["env_id"] == "Some-v0"


def test_our_sb_files_are_what_stable_baselines_wants(tmp_path):
    demos = KINDS["discrete"]
    demos.save(tmp_path / "demos.npz", format="sb")
    archive = np.load(tmp_path / "demos.npz")
    assert archive["actions"].shape == (demos.steps, 1)
    assert np.flatnonzero(archive["episode_starts"]).tolist() == [0, 4, 5]
    assert archive["episode_returns"].tolist() == demos.returns.tolist()  # type: ignore[union-attr]
    KINDS["no rewards"].save(tmp_path / "silent.npz", format="sb")
    assert np.isnan(np.load(tmp_path / "silent.npz")["episode_returns"]).all()


def test_our_imitation_files_split_as_imitation_splits_them(tmp_path):
    demos = KINDS["float32"]
    demos.save(tmp_path / "demos.npz", format="imitation")
    archive = np.load(tmp_path / "demos.npz")
    cuts = archive["indices"]
    observations = np.split(archive["obs"], cuts + np.arange(len(cuts)) + 1)
    for key, pieces in (("acts", "actions"), ("rews", "rewards")):
        for piece, trajectory in zip(np.split(archive[key], cuts), demos, strict=True):
            assert (piece == getattr(trajectory, pieces)).all()
    for piece, infos, trajectory in zip(observations, np.split(archive["infos"], cuts), demos, strict=True):
        assert (piece == trajectory.observations).all()
        assert len(infos) == len(trajectory)
    assert archive["terminal"].tolist() == [True, True, False]


def test_our_folders_are_datasets_with_imitations_columns_only(tmp_path):
    datasets = pytest.importorskip("datasets")
    demos = KINDS["float32"]
    demos.save(tmp_path / "folder")
    dataset = datasets.load_from_disk(str(tmp_path / "folder"))
    assert set(dataset.column_names) == {"obs", "acts", "rews", "infos", "terminal"}
    for row, trajectory in zip(dataset.with_format("numpy"), demos, strict=True):
        assert np.array_equal(row["obs"], trajectory.observations)
        assert np.array_equal(row["rews"], trajectory.rewards)
    assert dataset[0]["infos"] == ["{}"] * 4


def test_our_minari_datasets_are_minaris():
    minari = pytest.importorskip("minari")
    import gymnasium

    from oal import envs

    spec = envs.describe(envs.make("CartPole-v1"))
    draw = np.random.default_rng(0)
    demos = record_encoded("CartPole-v1", lambda o: envs.uniform_actions(spec, len(o), draw), episodes=3)
    demos.save("minari:cartpole/random-v0")
    dataset = minari.load_dataset("cartpole/random-v0")
    assert dataset.total_episodes == 3
    assert dataset.action_space == spaces.Discrete(2)
    assert dataset.recover_environment().observation_space == gymnasium.make("CartPole-v1").observation_space
    for theirs, ours in zip(dataset.iterate_episodes(), demos, strict=True):
        assert np.array_equal(theirs.observations, ours.observations)
        assert np.array_equal(theirs.actions, ours.actions)
        assert np.array_equal(theirs.rewards, ours.rewards)  # type: ignore[arg-type]
        assert bool(theirs.terminations[-1]) == ours.terminated
    with pytest.raises(InputError, match="exists already"):
        demos.save("minari:cartpole/random-v0")
    with pytest.raises(InputError, match="Malformed dataset ID"):
        demos.save("minari:no version")
    assert not places.minari_folder("no version").exists()


# We read others'


def as_stable_baselines_writes(path: Path, **changes) -> None:
    """What ExpertDataset files hold: flat arrays, discrete actions as a column."""
    arrays = {
        "obs": np.arange(10.0).reshape(5, 2),
        "actions": np.array([[0], [1], [1], [0], [1]]),
        "rewards": np.array([1.0, 2, 3, 4, 5]),
        "episode_starts": np.array([True, False, True, False, False]),
        "episode_returns": np.array([3.0, 12.0]),
    }
    np.savez(path, **{key: value for key, value in {**arrays, **changes}.items() if value is not None})


def test_stable_baselines_files(tmp_path):
    as_stable_baselines_writes(tmp_path / "expert.npz")
    demos = oal.demos.load(tmp_path / "expert.npz")
    assert demos.lengths.tolist() == [2, 3]
    assert demos[0].actions.tolist() == [0, 1]
    assert not demos.endings_known
    assert all(t.truncated and not t.terminated and not t.has_final for t in demos)
    limited = oal.demos.load(tmp_path / "expert.npz", time_limit=3)
    assert [t.terminated for t in limited] == [True, False]
    assert limited.endings_known


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"episode_starts": np.array([False, True, False, False, False])}, "must begin with a start"),
        ({"episode_starts": np.array([True, False, True, False])}, r"episode_starts has shape \(4,\)"),
        ({"episode_starts": np.array([True, False, False, True, False])}, "episode 0: its rewards sum to 6 and"),
        ({"episode_starts": np.array([True, True, True, False, False])}, "episode_returns has shape .* has 3 episodes"),
        ({"rewards": np.zeros(4)}, r"rewards has shape \(4,\): the lengths of the episodes want 5 rows"),
        ({"obs": np.full((5, 2), np.nan)}, r"expert.npz: episode 0: observations hold nan at step 0, index \(0,\)"),
        ({"final_obs": np.zeros((3, 2))}, "episode_starts has 2 episodes"),
        ({"final_obs": np.zeros((2, 3))}, r"final_obs has rows of shape \(3,\)"),
        ({"terminated": np.eye(5, dtype=bool)[0], "truncated": np.zeros(5, bool)}, "episode 0: terminated at step 0"),
    ],
)
def test_stable_baselines_files_that_contradict_themselves(changes, says, tmp_path):
    as_stable_baselines_writes(tmp_path / "expert.npz", **changes)
    with pytest.raises(InputError, match=says) as refused:
        oal.demos.load(tmp_path / "expert.npz")
    assert str(tmp_path / "expert.npz") in str(refused.value)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"indices": np.array([2, 2])}, "indices: episode 1 goes from 2 to 2"),
        ({"indices": np.array([9])}, "indices: episode 1 goes from 9 to 5"),
        ({"indices": np.array([-1, 2])}, "indices: episode 0 goes from 0 to -1"),
        ({"indices": np.array([2.0])}, "indices has shape .* whole numbers"),
        ({"obs": np.zeros((6, 1))}, "obs has shape .* want 7 rows"),
        ({"terminal": np.array([True])}, "terminal has shape .* vector of 2 booleans"),
    ],
)
def test_imitation_files_that_contradict_themselves(changes, says, tmp_path):
    arrays = {
        "obs": np.zeros((7, 1)),
        "acts": np.zeros((5, 1)),
        "indices": np.array([2]),
        "terminal": np.array([True, False]),
    }
    np.savez(tmp_path / "good.npz", **arrays)
    good = oal.demos.load(tmp_path / "good.npz")
    assert [(len(t), t.truncated) for t in good] == [(2, True), (3, False)]
    np.savez(tmp_path / "bad.npz", **{**arrays, **changes})
    with pytest.raises(InputError, match=says):
        oal.demos.load(tmp_path / "bad.npz")


def test_folders_as_the_imitation_library_saves_them(tmp_path):
    datasets = pytest.importorskip("datasets")
    draw = np.random.default_rng(0)
    columns = {
        "obs": [draw.normal(size=(n + 1, 3)).astype(np.float32) for n in (3, 5, 2)],
        "acts": [draw.integers(4, size=n) for n in (3, 5, 2)],
        "infos": [['{"py/reduce": [{"py/function": "os.mkdir"}, {"py/tuple": ["mark"]}]}'] * n for n in (3, 5, 2)],
        "terminal": [True, False, True],
        "rews": [draw.normal(size=n) for n in (3, 5, 2)],
    }
    dataset = datasets.Dataset.from_dict(columns)
    dataset.save_to_disk(str(tmp_path / "one"))
    dataset.save_to_disk(str(tmp_path / "three"), num_shards=3)
    datasets.DatasetDict({"train": dataset}).save_to_disk(str(tmp_path / "split"))
    for name in ("one", "three", "split"):
        demos = oal.demos.load(tmp_path / name)
        assert [t.truncated for t in demos] == [True, False, True]
        for trajectory, obs, acts, rews in zip(demos, columns["obs"], columns["acts"], columns["rews"], strict=True):
            assert np.array_equal(trajectory.observations, obs)
            assert np.array_equal(trajectory.actions, acts)
            assert np.array_equal(trajectory.rewards, rews)  # type: ignore[arg-type]
        assert demos[0].observations.dtype == np.float32
    datasets.DatasetDict({"train": dataset, "test": dataset}).save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(InputError, match=r"has the splits \['train', 'test'\]"):
        oal.demos.load(tmp_path / "splits")


def test_minari_datasets_with_dictionaries_become_flat_vectors():
    minari = pytest.importorskip("minari")
    import gymnasium
    from gymnasium.spaces.utils import flatten

    class Room(gymnasium.Env):
        """Observations are a dictionary, whose keys are not in alphabetical order; three steps, then the end."""

        observation_space = spaces.Dict([("room", spaces.Discrete(3)), ("place", spaces.Box(-1, 1, (2,), np.float32))])
        action_space = spaces.Box(-1, 1, (1,), np.float32)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.observation_space.seed(seed)
            self.left = 3
            return self.observation_space.sample(), {}

        def step(self, action):
            self.left -= 1
            return self.observation_space.sample(), 1.0, self.left == 0, False, {}

    env = minari.DataCollector(Room())
    for seed in range(2):
        env.reset(seed=seed)
        ended = False
        while not ended:
            *_, ended, _, _ = env.step(env.action_space.sample())
    with pytest.warns(UserWarning, match="`author` is set to None"):
        dataset = env.create_dataset("room/random-v0")
    demos = oal.demos.load("minari:room/random-v0")
    assert demos.lengths.tolist() == [3, 3]
    assert [t.seed for t in demos] == [0, 1]
    assert all(t.terminated for t in demos)
    assert demos.observation_space == spaces.flatten_space(Room.observation_space)
    for theirs, ours in zip(dataset.iterate_episodes(), demos, strict=True):
        rows = [{key: values[i] for key, values in theirs.observations.items()} for i in range(4)]
        assert np.array_equal(ours.observations, [flatten(Room.observation_space, row) for row in rows])
    assert oal.demos.load(places.minari_folder("room/random-v0")) == demos


def test_minari_names_stay_in_the_store():
    for name in ("../../etc", "", "a//b", "a/../b"):
        with pytest.raises(InputError, match="is no dataset name"):
            oal.demos.load(f"minari:{name}")


def test_old_d4rl_files_are_cut_where_observations_jump(tmp_path):
    h5py = pytest.importorskip("h5py")
    observations = np.arange(7.0)[:, None]
    following = observations + 1
    following[2] = 50.0  # a jump after step 2, and a termination after step 4
    with h5py.File(tmp_path / "old.hdf5", "w") as file:
        file["observations"], file["actions"] = observations, np.zeros((7, 1), np.float32)
        file["rewards"], file["next_observations"] = np.arange(7.0), following
        file["terminals"] = np.arange(7) == 4
        file["infos/qpos"] = np.zeros((7, 2))
    demos = oal.demos.load(tmp_path / "old.hdf5")
    assert demos.lengths.tolist() == [3, 2, 2]
    assert [(t.terminated, t.truncated) for t in demos] == [(False, True), (True, False), (False, False)]
    assert demos[0].observations.ravel().tolist() == [0, 1, 2, 50]
    assert not demos.endings_known
    with h5py.File(tmp_path / "old.hdf5", "a") as file:
        file["timeouts"] = np.zeros(7, bool)
    with pytest.raises(InputError, match="episode 0: the next observation of step 2 is not the observation of step 3"):
        oal.demos.load(tmp_path / "old.hdf5")


def test_new_d4rl_files_without_next_observations(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "new.hdf5", "w") as file:
        file["observations"], file["actions"] = np.zeros((5, 2)), np.zeros((5, 1))
        file["terminals"], file["timeouts"] = np.arange(5) == 1, (np.arange(5) == 3).astype(np.uint8)
    demos = oal.demos.load(tmp_path / "new.hdf5")
    assert [(len(t), t.terminated, t.truncated) for t in demos] == [
        (2, True, False),
        (2, False, True),
        (1, False, False),
    ]
    assert demos.endings_known


# Names, targets, extras


def test_shipped_demonstrations_go_by_name(tmp_path, monkeypatch):
    KINDS["float32"].save(tmp_path / "Some-v0.npz")
    monkeypatch.setattr(places, "SHIPPED", tmp_path)
    assert oal.demos.shipped() == ["Some-v0"]
    assert oal.demos.load("Some-v0") == KINDS["float32"]
    with pytest.raises(InputError, match="Other-v0: there is no such file; shipped demonstrations are Some-v0"):
        oal.demos.load("Other-v0")


@pytest.mark.parametrize("name", oal.demos.shipped())
def test_what_is_shipped_loads_and_fits_its_environment(name):
    demos = oal.demos.load(name, env=name, strict=True)
    assert demos.env_id == name
    assert len(demos) >= 10
    assert demos.has_finals
    assert demos.endings_known
    assert demos.observations.dtype == np.float32


def test_targets_say_their_format(tmp_path):
    demos = KINDS["float32"]
    with pytest.raises(InputError, match="its ending says no format"):
        demos.save(tmp_path / "demos.pkl")
    with pytest.raises(InputError, match="format 'pickle' is unknown: choose one of oal, sb"):
        demos.save(tmp_path / "demos.npz", format="pickle")
    with pytest.raises(InputError, match="named minari:ID"):
        demos.save(tmp_path / "demos", format="minari")
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match="exists already"):
        demos.save(tmp_path / "taken")


@pytest.mark.parametrize(
    "package, extra, target",
    [("h5py", "hdf5", "demos.hdf5"), ("datasets", "datasets", "folder"), ("minari", "minari", "minari:a/b-v0")],
)
def test_a_missing_extra_is_named(package, extra, target, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    path = target if target.startswith("minari:") else tmp_path / target
    with pytest.raises(MissingExtraError, match=re.escape(f"'{package}': install it with  pip install 'oal[{extra}]'")):
        KINDS["float32"].save(path)


def test_a_missing_extra_is_named_when_reading(tmp_path, monkeypatch):
    KINDS["float32"].save(tmp_path / "demos.hdf5")
    KINDS["float32"].save(tmp_path / "folder")
    monkeypatch.setitem(sys.modules, "h5py", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "minari", None)
    for source, package in (("demos.hdf5", "h5py"), ("folder", "pyarrow")):
        with pytest.raises(MissingExtraError, match=package):
            oal.demos.load(tmp_path / source)
    with pytest.raises(MissingExtraError, match="minari"):
        oal.demos.load("minari:mujoco/hopper/expert-v0")


def test_loading_checks_against_an_environment(tmp_path):
    loud = Demos((Trajectory(np.zeros((3, 3), np.float32), np.full((2, 1), 5.0)),))
    loud.save(tmp_path / "loud.npz")
    with pytest.warns(UserWarning, match="Pendulum-v1: 2 of 2 action values lie outside"):
        assert oal.demos.load(tmp_path / "loud.npz", env="Pendulum-v1").actions.max() == 2
    with pytest.raises(InputError, match=r"loud.npz: Pendulum-v1: 2 of 2"):
        oal.demos.load(tmp_path / "loud.npz", env="Pendulum-v1", strict=True)
