"""Write demonstrations in any of the formats that `oal.demos.read` reads."""

import os
import secrets
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oal.base import npz
from oal.base.files import replacing
from oal.demos import about as about_text
from oal.demos.places import MINARI, minari_folder
from oal.errors import InputError, choice, require

if TYPE_CHECKING:
    from oal.demos.trajectories import Demos


def save(demos: "Demos", target: str | os.PathLike[str], *, format: str | None = None) -> None:
    """Write demonstrations; the format is `format`, or what the target's name asks for (.npz is oal's own)."""
    name = os.fspath(target)
    format_name = _format_of(name) if format is None else choice("format", format, FORMATS)
    if name.startswith(MINARI) != (format_name == "minari"):
        raise InputError(f"{name}: Minari datasets are named minari:ID, and only they; the format is {format_name}")
    _WRITERS[format_name](demos, name)


def _format_of(target: str) -> str:
    suffixes = {".npz": "oal", ".hdf5": "hdf5", ".h5": "hdf5", "": "hf"}
    if target.startswith(MINARI):
        return "minari"
    if Path(target).suffix not in suffixes:
        raise InputError(
            f"{target}: its ending says no format: use .npz, .hdf5, a folder, minari:ID, or name the format"
        )
    return suffixes[Path(target).suffix]


def _oal(demos: "Demos", path: str) -> None:
    arrays = {"about": npz.text(about_text.write(demos, endings=False)), "lengths": demos.lengths}
    for key in ("has_final", "terminated", "truncated"):
        arrays[key] = np.array([getattr(trajectory, key) for trajectory in demos], dtype=bool)
    arrays["observations"] = np.concatenate([trajectory.observations for trajectory in demos])
    npz.write(path, arrays | {"actions": demos.actions} | _rewards(demos, "rewards"))


def _stable_baselines(demos: "Demos", path: str) -> None:
    starts = np.zeros(demos.steps, bool)
    starts[np.cumsum(demos.lengths) - demos.lengths] = True
    arrays = {
        "obs": demos.observations[:, None] if demos.observations.ndim == 1 else demos.observations,
        "actions": demos.actions[:, None] if demos.actions.ndim == 1 else demos.actions,
        "episode_starts": starts,
        # Stable-Baselines wants the key; without rewards the returns are not known.
        "episode_returns": np.full(len(demos), np.nan) if demos.returns is None else demos.returns,
        "terminated": _at_last_steps(demos, "terminated"),
        "truncated": _at_last_steps(demos, "truncated"),
        **_rewards(demos, "rewards"),
    }
    if any(trajectory.has_final for trajectory in demos):
        finals = [t.observations[-1] if t.has_final else np.zeros_like(t.observations[0]) for t in demos]
        arrays["final_obs"] = np.stack(finals)
    arrays["about"] = npz.text(about_text.write(demos, endings=False))
    npz.write(path, arrays)


def _imitation(demos: "Demos", path: str) -> None:
    _need_finals(demos, path)
    arrays = {
        "obs": np.concatenate([trajectory.observations for trajectory in demos]),
        "acts": demos.actions,
        # imitation wants the key; a vector of nothing per step stands for its pickled dictionaries.
        "infos": np.zeros((demos.steps, 0), np.uint8),
        "terminal": np.array([trajectory.terminated or trajectory.truncated for trajectory in demos]),
        "indices": np.cumsum(demos.lengths)[:-1],
        **_rewards(demos, "rews"),
        "about": npz.text(about_text.write(demos, endings=True)),
    }
    npz.write(path, arrays)


def _d4rl(demos: "Demos", path: str) -> None:
    h5py = require("h5py", extra="hdf5", needed_for=f"writing {path}")
    terminals, timeouts = _at_last_steps(demos, "terminated"), _at_last_steps(demos, "truncated")
    # An episode must end in one of the two flags; where it ended in neither, `about` has the truth.
    timeouts[np.cumsum(demos.lengths) - 1] |= [not (t.terminated or t.truncated) for t in demos]
    arrays = {"observations": demos.observations, "actions": demos.actions}
    arrays |= {"terminals": terminals, "timeouts": timeouts, **_rewards(demos, "rewards")}
    if any(trajectory.has_final for trajectory in demos):
        following = []
        for trajectory in demos:
            unknown = np.zeros_like(trajectory.observations[:1])
            following += [trajectory.observations[1:], *([] if trajectory.has_final else [unknown])]
        arrays["next_observations"] = np.concatenate(following)
    arrays["about"] = np.frombuffer(about_text.write(demos, endings=True).encode(), np.uint8)
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array, compression="gzip" if array.size else None, track_times=False)


def _hugging_face(demos: "Demos", path: str) -> None:
    """Write the folder, which must not exist yet, in one step. The format needs every final observation."""
    datasets = require("datasets", extra="datasets", needed_for=f"writing {path}")
    target = Path(path)
    if target.exists():
        raise InputError(f"{path} exists already: choose another folder")
    _need_finals(demos, path)
    columns = {
        "obs": [trajectory.observations for trajectory in demos],
        "acts": [trajectory.actions for trajectory in demos],
        "infos": [["{}"] * len(trajectory) for trajectory in demos],
        "terminal": [trajectory.terminated or trajectory.truncated for trajectory in demos],
    }
    features = {
        "obs": _feature(datasets, demos[0].observations),
        "acts": _feature(datasets, demos[0].actions),
        "infos": datasets.Sequence(datasets.Value("string")),
        "terminal": datasets.Value("bool"),
    }
    if demos.rewards is not None:
        columns["rews"] = [trajectory.rewards for trajectory in demos]
        features["rews"] = _feature(datasets, demos.rewards)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    bars = datasets.utils.logging.is_progress_bar_enabled()
    try:
        datasets.utils.logging.disable_progress_bar()
        datasets.Dataset.from_dict(columns, features=datasets.Features(features)).save_to_disk(temporary)
        (temporary / "about.json").write_text(about_text.write(demos, endings=True), encoding="utf-8")
        temporary.rename(target)
    finally:
        if bars:
            datasets.utils.logging.enable_progress_bar()
        shutil.rmtree(temporary, ignore_errors=True)


def _feature(datasets: Any, array: np.ndarray) -> Any:
    feature = datasets.Value(str(array.dtype))
    for _ in range(array.ndim):
        feature = datasets.Sequence(feature)
    return feature


def _minari(demos: "Demos", target: str) -> None:
    """Add a dataset to Minari's local store. It needs every final observation, and a name that is not taken."""
    minari = require("minari", extra="minari", needed_for=f"writing {target}")
    dataset_id = target.removeprefix(MINARI)
    folder = minari_folder(dataset_id)
    if folder.exists():
        raise InputError(f"{target} exists already in {folder.parent}: choose another name or version")
    _need_finals(demos, target)
    spaces = {
        "observation_space": demos.observation_space or _open_box("observations", demos.observations),
        "action_space": demos.action_space or _open_box("actions", demos.actions),
    }
    buffers = []
    for i, trajectory in enumerate(demos):
        steps = len(trajectory)
        last = np.arange(steps) == steps - 1
        arrays: dict[str, Any] = {
            "observations": trajectory.observations,
            "actions": trajectory.actions,
            "rewards": np.zeros(steps) if trajectory.rewards is None else trajectory.rewards,
            "terminations": last & trajectory.terminated,
            "truncations": last & trajectory.truncated,
        }
        buffers.append(minari.data_collector.EpisodeBuffer(id=i, seed=trajectory.seed, infos={}, **arrays))
    options: dict[str, Any] = {}
    if demos.observations.dtype == np.uint8:
        options["jpeg_encoding"] = False  # Minari stores pictures with losses unless told not to
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Minari asks for an author, a permalink and more
            dataset = minari.create_dataset_from_buffers(
                dataset_id, buffers, env=_spec(demos.env_id), description=demos.source, **spaces, **options
            )
            dataset.storage.update_metadata({"oal": about_text.write(demos, endings=False)})
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, (ValueError, TypeError, AssertionError)):
            raise InputError(f"{target} cannot be written: {error}") from None
        raise


def _open_box(name: str, array: np.ndarray) -> Any:
    """Return the space of all floats of that shape, for demonstrations that do not know theirs."""
    from gymnasium import spaces

    if array.dtype.kind != "f":
        raise InputError(f"Minari wants to know the space of the {name}: check them against their environment first")
    return spaces.Box(-np.inf, np.inf, array.shape[1:], array.dtype.type)


def _spec(env_id: str | None) -> Any:
    """Return the specification of an environment that can be made here, or None."""
    import gymnasium

    if env_id is None or ":" in env_id:  # what stands before a colon would be imported
        return None
    try:
        gymnasium.make(env_id).close()
        return gymnasium.spec(env_id)
    except gymnasium.error.Error:
        return None


def _rewards(demos: "Demos", key: str) -> dict[str, np.ndarray]:
    return {} if demos.rewards is None else {key: demos.rewards}


def _at_last_steps(demos: "Demos", name: str) -> np.ndarray:
    """Return a flag of the trajectories as one boolean per step, set at last steps only."""
    array = np.zeros(demos.steps, bool)
    array[np.cumsum(demos.lengths) - 1] = [getattr(trajectory, name) for trajectory in demos]
    return array


def _need_finals(demos: "Demos", target: str) -> None:
    """Refuse to write into a format of T + 1 observations what has only T."""
    for episode, trajectory in enumerate(demos):
        if not trajectory.has_final:
            raise InputError(
                f"{target}: its format needs the observation after the last action, which episode {episode} does not "
                "have: use with_final() (on the command line --drop-last-step) to give up the last step"
            )


_WRITERS: dict[str, Callable[["Demos", str], None]] = {
    "oal": _oal,
    "sb": _stable_baselines,
    "imitation": _imitation,
    "hdf5": _d4rl,
    "hf": _hugging_face,
    "minari": _minari,
}
FORMATS = tuple(_WRITERS)
