"""Read demonstrations from HDF5: D4RL's single files and Minari's datasets.

Both are read through `oal.base.hdf5`, and nothing the file names is imported or made (Minari itself may build the
environment a file asks for).

hdf5         D4RL: observations, actions, rewards, terminals, timeouts, next_observations; here with about
minari       a folder data/ with metadata.json (spaces, environment; here with about) and main_data.hdf5, which holds
             a group per episode: observations (T + 1), actions, rewards, terminations, truncations
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from oal.base import jsontext
from oal.base.hdf5 import Fields
from oal.base.limits import DEFAULT_BUDGET, MAX_EPISODES, MAX_TEXT, Budget, check_episodes, damage
from oal.base.opening import MissingFileError, opened, read_bytes
from oal.base.spaces import flatten, is_composite, space_from_json
from oal.demos import about as about_text
from oal.demos.about import About
from oal.demos.assembly import build, by_episode, flags, only_at_end, split
from oal.demos.places import minari_folder
from oal.demos.trajectories import Demos
from oal.errors import InputError, is_whole, require, shortened

# D4RL


def read_d4rl(file: str | BinaryIO, name: str, *, budget: Budget = DEFAULT_BUDGET) -> Demos:
    """Read a D4RL file, from a path or an open file."""
    with damage(f"{name}: the demonstrations are damaged"):
        return _read_d4rl(file, name, budget)


def _read_d4rl(file: str | BinaryIO, name: str, budget: Budget) -> Demos:
    """Read a D4RL file.

    Episodes end where `terminals` or `timeouts` say so. Old files have no `timeouts`: then an episode also ends where
    the next observation is not the one of the next row, if they hold `next_observations`.
    """
    with Fields.open(file, name, budget) as fields:
        actions = fields.read("actions")
        observations = fields.read("observations")
        steps = len(actions) if actions.ndim else 0
        following = fields.read("next_observations") if "next_observations" in fields else None
        terminals = flags(f"{name}: terminals", fields.read("terminals"), steps)
        timeouts = flags(f"{name}: timeouts", fields.read("timeouts"), steps) if "timeouts" in fields else None
        rewards = fields.read("rewards") if "rewards" in fields else None
        about = about_text.read_optional(fields)
    about.check_rewards(f"{name}: 'rewards'", rewards is not None)
    for key, array in (("observations", observations), ("next_observations", following), ("rewards", rewards)):
        if array is not None and (array.ndim == 0 or len(array) != steps):
            raise InputError(f"{name}: '{key}' has shape {array.shape}: there are {steps} actions")
    if following is not None and following.shape != observations.shape:
        raise InputError(f"{name}: next_observations have shape {following.shape}, observations {observations.shape}")
    jumps = np.zeros(steps, bool)
    if following is not None and steps > 1:
        differs = (following[:-1] != observations[1:]).reshape(steps - 1, -1)
        jumps[:-1] = differs.any(axis=1)
    ends = terminals | (jumps if timeouts is None else timeouts)
    if steps:
        ends[-1] = True
    check_episodes(name, int(ends.sum()))
    last = np.flatnonzero(ends)
    lengths = np.diff(last, prepend=-1).tolist()
    about.check_columns(len(lengths))
    pieces = {"observations": split(f"{name}: observations", observations, lengths)}
    pieces["actions"] = split(f"{name}: actions", actions, lengths)
    if rewards is not None:
        pieces["rewards"] = split(f"{name}: rewards", rewards, lengths)
    episodes = by_episode(pieces)
    for i, (end, length) in enumerate(zip(last.tolist(), lengths, strict=True)):
        inside = np.flatnonzero(jumps[end - length + 1 : end])
        if len(inside):
            raise InputError(
                f"{name}: episode {i}: the next observation of step {inside[0]} is not the observation of step "
                f"{inside[0] + 1}, and neither terminals nor timeouts end an episode there"
            )
        arguments = episodes[i]
        if following is not None and about.final_is_known(i):
            arguments["observations"] = np.concatenate([arguments["observations"], following[end : end + 1]])
        timed_out = bool(jumps[end] and not terminals[end]) if timeouts is None else bool(timeouts[end])
        arguments |= {"terminated": bool(terminals[end]), "truncated": timed_out}
    return build(name, episodes, about, endings_known=timeouts is not None)


# Minari


def load_minari(dataset_id: str, *, budget: Budget = DEFAULT_BUDGET) -> Demos:
    """Read a dataset of Minari's local store; what is not there is downloaded first (which needs Minari)."""
    folder = minari_folder(dataset_id)
    if not (folder / "data").is_dir():
        minari = require("minari", extra="minari", needed_for=f"downloading minari:{dataset_id}")
        try:
            minari.download_dataset(dataset_id)
        except Exception as error:  # whatever the network, the hub or Minari raise: the user needs the dataset's name
            raise InputError(
                f"minari:{dataset_id} is not in {folder.parent} and cannot be downloaded ({shortened(str(error), 200)})"
            ) from None
    return read_minari_folder(folder, f"minari:{dataset_id}", budget=budget)


def read_minari_folder(folder: Path, name: str, *, budget: Budget = DEFAULT_BUDGET) -> Demos:
    """Read a dataset as Minari keeps it: a folder of metadata.json and main_data.hdf5."""
    data = folder / "data" if (folder / "data").is_dir() else folder
    where = f"{name}: metadata.json"
    metadata = read_bytes(data / "metadata.json", inside=folder, max_bytes=MAX_TEXT, where=where)
    try:
        with opened(data / "main_data.hdf5", inside=folder, where=f"{name}: main_data.hdf5") as file:
            return read_minari(metadata, file, name, budget=budget)
    except MissingFileError:
        raise InputError(
            f"{name}: has no main_data.hdf5; only Minari's HDF5 storage is read, not its Arrow storage"
        ) from None


def read_minari(metadata_json: bytes, file: str | BinaryIO, name: str, *, budget: Budget = DEFAULT_BUDGET) -> Demos:
    """Read the two files of a Minari dataset: the JSON text and the HDF5 file (a path or an open file)."""
    with damage(f"{name}: the dataset is damaged"):
        return _read_minari(metadata_json, file, name, budget)


def _read_minari(metadata_json: bytes, file: str | BinaryIO, name: str, budget: Budget) -> Demos:
    where = f"{name}: metadata.json"
    metadata = jsontext.parse(where, metadata_json)
    count = metadata.get("total_episodes") if isinstance(metadata, dict) else None
    if not is_whole(count) or not 1 <= count <= MAX_EPISODES:
        raise InputError(f"{where}: total_episodes is {shortened(count)}: it must be a whole number, 1 or larger")
    spaces = {}
    for key in ("observation_space", "action_space"):
        if not isinstance(metadata.get(key), str):
            raise InputError(f"{where}: {key} is missing: it must be a space, as JSON text")
        spaces[key] = space_from_json(f"{where}: {key}", jsontext.parse(f"{where}: {key}", metadata[key]))
    text = metadata.get("oal")
    if isinstance(text, str):
        about = about_text.read(f"{where}: oal", text)
    elif text is None:
        about = _minari_about(where, metadata)
    else:
        raise InputError(f"{where}: oal is {shortened(text)}: it must be text")
    about.check_columns(count)
    with Fields.open(file, name, budget) as fields:
        episodes = [
            _minari_episode(fields.fields(f"episode_{i}"), spaces, about.has_rewards is not False) for i in range(count)
        ]
    if text is None:
        from gymnasium.spaces import flatten_space  # only now: the budget has allowed for flat observations

        flat = {key: flatten_space(space) if is_composite(space) else space for key, space in spaces.items()}
        about = replace(about, of_demos={**about.of_demos, **flat})
    return build(name, episodes, about)


def _minari_about(where: str, metadata: dict[str, Any]) -> About:
    """Say what Minari's own metadata says of the environment and the makers."""
    env_id = None
    if isinstance(metadata.get("env_spec"), str):
        spec = jsontext.parse(f"{where}: env_spec", metadata["env_spec"])
        env_id = spec.get("id") if isinstance(spec, dict) else None
    kept = ("dataset_id", "algorithm_name", "author", "description", "code_permalink", "minari_version")
    about = {key: metadata[key] for key in kept if isinstance(metadata.get(key), (str, list))}
    source = metadata.get("dataset_id")
    return About(
        where,
        {
            "env_id": env_id if isinstance(env_id, str) else None,
            "source": f"Minari dataset {source}" if isinstance(source, str) else None,
            "metadata": about,
        },
    )


def _minari_episode(fields: Fields, spaces: dict[str, Any], has_rewards: bool) -> dict[str, Any]:
    actions = _minari_values(fields, "actions", spaces["action_space"])
    steps = len(actions)
    endings = {
        name: only_at_end(fields.name, name, flags(f"{fields.name}: {key}", fields.read(key), steps))
        for name, key in (("terminated", "terminations"), ("truncated", "truncations"))
    }
    seed = fields.attribute("seed")
    return {
        "observations": _minari_values(fields, "observations", spaces["observation_space"]),
        "actions": actions,
        "rewards": fields.read("rewards") if has_rewards else None,
        **endings,
        "seed": seed if seed is not None and seed >= 0 else None,
    }


def _minari_values(fields: Fields, key: str, space: Any) -> np.ndarray:
    """Read observations or actions; those of Dict and Tuple spaces become flat vectors."""
    if not is_composite(space):
        array = fields.read(key)
        if array.ndim == 0:
            raise InputError(f"{fields.name}: '{key}' is a single number")
        return array
    from gymnasium.spaces import flatdim

    values = _minari_tree(fields, key, space)
    fields.spend(f"{fields.name}: {key}, flattened,", 8 * flatdim(space) * _rows(values))
    return flatten(f"{fields.name}: {key}", space, values)


def _rows(values: Any) -> int:
    """Return the most rows of any array in a tree."""
    if isinstance(values, np.ndarray):
        return len(values) if values.ndim else 1
    return max((_rows(part) for part in (values.values() if isinstance(values, dict) else values)), default=0)


def _minari_tree(fields: Fields, key: str, space: Any) -> Any:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        inside = fields.fields(key)
        return {name: _minari_tree(inside, name, inner) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        inside = fields.fields(key)
        return [_minari_tree(inside, f"_index_{i}", inner) for i, inner in enumerate(space.spaces)]
    return fields.read(key)
