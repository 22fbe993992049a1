"""Demonstrations in HDF5: D4RL's single files and Minari's datasets.

Both are read with h5py alone and field by field: a field's claimed size is held against what is stored and against the
memory budget before anything is allocated, packed chunks are unpacked here and no further than they claim, links to
other files are not followed, and nothing the file names is imported or made (Minari itself may build the environment a
file asks for).

hdf5         D4RL: observations, actions, rewards, terminals, timeouts, next_observations; here with about
minari       a folder data/ with metadata.json (spaces, environment; here with about) and main_data.hdf5, which holds
             a group per episode: observations (T + 1), actions, rewards, terminations, truncations
"""

import itertools
import math
import os
import shutil
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from oal.base.files import replacing
from oal.base.limits import DEFAULT_BUDGET, DEFLATE_MAX_RATIO, MAX_EPISODES, MAX_TEXT, Budget, check_episodes
from oal.demos import about as about_text
from oal.demos.about import About
from oal.demos.assembly import build, flags, need_finals, only_at_end, per_step, split
from oal.demos.spaces import flatten, is_composite, space_from_json
from oal.demos.trajectories import Demos
from oal.errors import InputError, MissingExtraError, shortened


def _h5py(needed_for: str) -> Any:
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("h5py", extra="hdf5", needed_for=needed_for) from None
    return h5py


@contextmanager
def _damage(where: str) -> Iterator[None]:
    """Turn what h5py raises on a damaged file into an InputError."""
    try:
        yield
    except InputError:
        raise
    except (
        OSError,
        KeyError,
        ValueError,
        TypeError,
        RuntimeError,
        OverflowError,
        AttributeError,
        MemoryError,
        zlib.error,
    ) as error:
        raise InputError(f"{where}: the HDF5 file is damaged ({shortened(str(error), 200)})") from None


class Fields:
    """A group of an HDF5 file whose datasets are read within a budget; `name` is what error messages call it."""

    def __init__(self, group: Any, name: str, left: list[int], file_bytes: int) -> None:
        self.group, self.name, self._left, self._file_bytes = group, name, left, file_bytes

    @classmethod
    @contextmanager
    def open(cls, file: str | BinaryIO, name: str, budget: Budget) -> "Iterator[Fields]":
        h5py = _h5py(f"reading {name}")
        file_bytes = Path(file).stat().st_size if isinstance(file, str) else file.seek(0, os.SEEK_END)
        with _damage(name):
            opened = h5py.File(file, "r")
        try:
            yield cls(opened, name, [budget.of(file_bytes)], file_bytes)
        finally:
            with _damage(name):
                opened.close()

    def __contains__(self, key: str) -> bool:
        with _damage(f"{self.name}: '{key}'"):
            return bool(self.group.id.links.exists(key.encode()))

    def _member(self, key: str, kind: str) -> Any:
        """Return a "Group" or "Dataset" of this file by its name, which must be no link to elsewhere."""
        h5py = _h5py(f"reading {self.name}")
        if key not in self:
            raise InputError(f"{self.name}: '{key}' is missing")
        with _damage(f"{self.name}: '{key}'"):
            if self.group.id.links.get_info(key.encode()).type != h5py.h5l.TYPE_HARD:
                raise InputError(f"{self.name}: '{key}' is a link to elsewhere, which is not followed")
            member = self.group[key]
            if not isinstance(member, getattr(h5py, kind)):
                raise InputError(f"{self.name}: '{key}' is a {type(member).__name__}: it must be a {kind}")
            return member

    def fields(self, key: str) -> "Fields":
        """Return a group inside this one."""
        return Fields(self._member(key, "Group"), f"{self.name}: {key}", self._left, self._file_bytes)

    def spend(self, where: str, nbytes: int) -> None:
        """Take bytes from what is left of the budget."""
        if nbytes > self._left[0]:
            raise InputError(f"{where} takes {nbytes} bytes: too many for a file of {self._file_bytes} bytes")
        self._left[0] -= nbytes

    def read(self, key: str, *, max_bytes: int | None = None) -> np.ndarray:
        """Return one dataset as an array of numbers."""
        where = f"{self.name}: '{key}'"
        dataset = self._member(key, "Dataset")
        with _damage(where):
            layout = Layout.of(where, dataset)
            if max_bytes is not None and layout.nbytes > max_bytes:
                raise InputError(f"{where} claims {layout.nbytes} bytes: at most {max_bytes} are read")
            layout.check_stored(where, self._file_bytes)
            self.spend(where, layout.nbytes)
            if not layout.filters:
                return np.asarray(dataset[()])
            if layout.chunk_bytes > layout.nbytes:
                self.spend(f"{where}, one chunk of it,", layout.chunk_bytes)
            return _unpacked(where, dataset, layout, self._file_bytes)

    def read_text(self, key: str) -> str:
        """Return a dataset of bytes as text."""
        try:
            return self.read(key, max_bytes=MAX_TEXT).astype(np.uint8).tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{self.name}: '{key}' is not valid text ({error})") from None

    def attribute(self, key: str) -> Any:
        """Return a whole-number attribute, or None."""
        with _damage(f"{self.name}: attribute '{key}'"):
            if key not in self.group.attrs:
                return None
            kind = self.group.attrs.get_id(key)
            if kind.shape != () or kind.dtype.kind not in "iu":
                return None
            return int(self.group.attrs[key])


@dataclass(frozen=True)
class Layout:
    """What a dataset claims about itself. `filters` are the names of those that pack its chunks, in writing order."""

    shape: tuple[int, ...]
    dtype: np.dtype
    stored: int
    chunk: tuple[int, ...] | None
    filters: tuple[str, ...]

    @classmethod
    def of(cls, where: str, dataset: Any) -> "Layout":
        import h5py

        settings = dataset.id.get_create_plist()
        kind = settings.get_layout()
        if settings.get_external_count() or kind == h5py.h5d.VIRTUAL:
            raise InputError(f"{where} keeps its data in other files, which are not opened")
        if dataset.dtype.kind not in "biuf" or dataset.dtype.itemsize > 8 or dataset.shape is None:
            raise InputError(f"{where} has dtype {dataset.dtype}: only plain booleans, integers and floats are read")
        codes = [settings.get_filter(i)[0] for i in range(settings.get_nfilters())]
        names = {h5py.h5z.FILTER_DEFLATE: "gzip", h5py.h5z.FILTER_SHUFFLE: "shuffle"}
        filters = tuple(names.get(code, f"number {code}") for code in codes)
        if not set(filters) <= set(names.values()) or filters.count("gzip") > 1:
            packed = f"packed with the HDF5 filters {', '.join(filters)}"
            raise InputError(f"{where} is {packed}: only gzip and shuffle are read")
        chunk = settings.get_chunk() if kind == h5py.h5d.CHUNKED else None
        return cls(dataset.shape, dataset.dtype, dataset.id.get_storage_size(), chunk, filters if chunk else ())

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def chunk_bytes(self) -> int:
        return math.prod(self.chunk or ()) * self.dtype.itemsize

    def check_stored(self, where: str, file_bytes: int) -> None:
        """Refuse a claim that the stored bytes cannot meet."""
        possible = self.stored * DEFLATE_MAX_RATIO if "gzip" in self.filters else self.stored
        if self.nbytes > possible or self.stored > file_bytes:
            raise InputError(f"{where} claims shape {self.shape} of {self.dtype}, but {self.stored} bytes are stored")
        if self.chunk is not None:
            if len(self.chunk) != len(self.shape):
                raise InputError(f"{where} has chunks of another number of dimensions than its shape")
            chunks = math.prod(-(-length // size) for length, size in zip(self.shape, self.chunk, strict=True))
            if chunks > file_bytes or (not self.filters and self.chunk_bytes > file_bytes):
                raise InputError(f"{where} claims {chunks} chunks of {self.chunk_bytes} bytes: too many for the file")


def _unpacked(where: str, dataset: Any, layout: Layout, file_bytes: int) -> np.ndarray:
    """Unpack a dataset's chunks here: HDF5's own inflating would follow a stream to its end, whatever it claimed."""
    from h5py import h5t

    if not dataset.id.get_type().equal(h5t.py_create(layout.dtype, logical=True)):
        raise InputError(f"{where} has an unusual number type: only plain booleans, integers and floats are read")
    array = np.zeros(layout.shape, layout.dtype)
    chunk = layout.chunk or ()
    raw_dtype = np.dtype(np.uint8) if layout.dtype.kind == "b" else layout.dtype  # a boolean may be any byte in a file
    for start in itertools.product(*(range(0, length, size) for length, size in zip(layout.shape, chunk, strict=True))):
        info = dataset.id.get_chunk_info_by_coord(start)
        if info.byte_offset is None or info.size > file_bytes:
            raise InputError(f"{where}: the chunk at {start} is not in the file")
        skipped, content = dataset.id.read_direct_chunk(start)
        for position, name in reversed(list(enumerate(layout.filters))):
            if not skipped & 1 << position:
                content = _inflated(content, layout.chunk_bytes) if name == "gzip" else _unshuffled(content, raw_dtype)
        if len(content) != layout.chunk_bytes:
            raise InputError(f"{where}: the chunk at {start} does not unpack to {layout.chunk_bytes} bytes")
        values = np.frombuffer(content, raw_dtype).reshape(chunk)
        inside = tuple(slice(0, length - at) for at, length in zip(start, layout.shape, strict=True))
        target = tuple(slice(at, at + size) for at, size in zip(start, chunk, strict=True))
        array[target] = values[inside]
    return array


def _inflated(content: bytes, limit: int) -> bytes:
    """Inflate a zlib stream, and not further than one byte beyond `limit`; a stream without an end gives nothing."""
    stream = zlib.decompressobj()
    inflated = stream.decompress(content, limit + 1)
    return inflated if stream.eof else b""


def _unshuffled(content: bytes, dtype: np.dtype) -> bytes:
    """Undo HDF5's shuffle, which puts the first bytes of all values first, then the second ones, and so on."""
    if len(content) % dtype.itemsize:
        return b""
    return np.frombuffer(content, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()


# D4RL


def read_d4rl(file: str | BinaryIO, name: str, *, budget: Budget = DEFAULT_BUDGET) -> Demos:
    """Read a D4RL file, from a path or an open file.

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
        about = About() if "about" not in fields else about_text.read(f"{name}: about", fields.read_text("about"))
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
    lengths = np.diff(np.flatnonzero(ends), prepend=-1).tolist()
    about.check_columns(f"{name}: about", len(lengths))
    last = np.flatnonzero(ends)
    episodes = []
    pieces = {"observations": split(f"{name}: observations", observations, lengths)}
    pieces["actions"] = split(f"{name}: actions", actions, lengths)
    if rewards is not None:
        pieces["rewards"] = split(f"{name}: rewards", rewards, lengths)
    for i, length in enumerate(lengths):
        end = int(last[i])
        inside = np.flatnonzero(jumps[end - length + 1 : end])
        if len(inside):
            raise InputError(
                f"{name}: episode {i}: the next observation of step {inside[0]} is not the observation of step "
                f"{inside[0] + 1}, and neither terminals nor timeouts end an episode there"
            )
        arguments = {key: piece[i] for key, piece in pieces.items()}
        if following is not None and about.final_is_known(i):
            arguments["observations"] = np.concatenate([arguments["observations"], following[end : end + 1]])
        timed_out = bool(jumps[end] and not terminals[end]) if timeouts is None else bool(timeouts[end])
        endings = {"terminated": bool(terminals[end]), "truncated": timed_out}
        episodes.append({**arguments, **endings, **about.of_episode(i)})
    known = about.endings_known and timeouts is not None
    return build(name, episodes, **about.of_demos(), endings_known=known)


def write_d4rl(demos: Demos, path: str | os.PathLike[str]) -> None:
    h5py = _h5py(f"writing {path}")
    terminals = per_step(demos, "terminated")
    # An episode must end in one of the two flags; where it ended in neither, `about` has the truth.
    timeouts = per_step(demos, "truncated")
    timeouts[np.cumsum(demos.lengths) - 1] |= [not (t.terminated or t.truncated) for t in demos]
    arrays = {"observations": demos.observations, "actions": demos.actions}
    arrays |= {"terminals": terminals, "timeouts": timeouts}
    if demos.rewards is not None:
        arrays["rewards"] = demos.rewards
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


# Minari


def minari_folder(dataset_id: str) -> Path:
    """Return where Minari keeps the dataset."""
    parts = dataset_id.split("/")
    if not dataset_id or any(part in ("", ".", "..") for part in parts) or "\\" in dataset_id:
        raise InputError(f"minari:{dataset_id} is no dataset name: it looks like  minari:mujoco/hopper/expert-v0")
    root = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
    return Path(root).joinpath(*parts)


def load_minari(dataset_id: str, *, budget: Budget = DEFAULT_BUDGET) -> Demos:
    """Read a dataset of Minari's local store; what is not there is downloaded first (which needs Minari)."""
    folder = minari_folder(dataset_id)
    if not (folder / "data").is_dir():
        try:
            import minari
        except ImportError:
            raise MissingExtraError("minari", extra="minari", needed_for=f"downloading minari:{dataset_id}") from None
        try:
            minari.download_dataset(dataset_id)
        except Exception as error:  # whatever the network, the hub or Minari raise: the user needs the dataset's name
            raise InputError(
                f"minari:{dataset_id} is not in {folder.parent} and cannot be downloaded ({shortened(str(error), 200)})"
            ) from None
    return read_minari_folder(folder, f"minari:{dataset_id}", budget=budget)


def read_minari_folder(folder: Path, name: str, *, budget: Budget = DEFAULT_BUDGET) -> Demos:
    data = folder / "data" if (folder / "data").is_dir() else folder
    try:
        with (data / "metadata.json").open("rb") as file:
            metadata = file.read(MAX_TEXT + 1)
    except OSError as error:
        raise InputError(f"{name}: metadata.json cannot be read ({error.strerror}): not a Minari dataset") from None
    if not (data / "main_data.hdf5").is_file():
        raise InputError(f"{name}: has no main_data.hdf5; only Minari's HDF5 storage is read, not its Arrow storage")
    return read_minari(metadata, str(data / "main_data.hdf5"), name, budget=budget)


def read_minari(metadata_json: bytes, file: str | BinaryIO, name: str, *, budget: Budget = DEFAULT_BUDGET) -> Demos:
    """Read the two files of a Minari dataset: the JSON text and the HDF5 file (a path or an open file)."""
    where = f"{name}: metadata.json"
    try:
        metadata = about_text.parse(where, metadata_json.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not valid text ({error})") from None
    count = metadata.get("total_episodes") if isinstance(metadata, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_EPISODES:
        raise InputError(f"{where}: total_episodes is {shortened(count)}: it must be a whole number, 1 or larger")
    spaces = {}
    for key in ("observation_space", "action_space"):
        if not isinstance(metadata.get(key), str):
            raise InputError(f"{where}: {key} is missing: it must be a space, as JSON text")
        spaces[key] = space_from_json(f"{where}: {key}", about_text.parse(f"{where}: {key}", metadata[key]))
    text = metadata.get("oal")
    if isinstance(text, str):
        about = about_text.read(f"{where}: oal", text, episodes=count)
    elif text is None:
        about = _minari_about(where, metadata)
    else:
        raise InputError(f"{where}: oal is {shortened(text)}: it must be text")
    episodes = []
    with Fields.open(file, name, budget) as fields:
        for i in range(count):
            arrays = _minari_episode(fields.fields(f"episode_{i}"), spaces, about.has_rewards is not False)
            episodes.append({**arrays, **about.of_episode(i)})
    of_demos = about.of_demos()
    if text is None:
        from gymnasium import spaces as gym_spaces

        for key, space in spaces.items():
            of_demos[key] = gym_spaces.flatten_space(space) if is_composite(space) else space
    return build(name, episodes, **of_demos, endings_known=about.endings_known)


def _minari_about(where: str, metadata: dict[str, Any]) -> About:
    """Say what Minari's own metadata says of the environment and the makers."""
    env_id = None
    if isinstance(metadata.get("env_spec"), str):
        spec = about_text.parse(f"{where}: env_spec", metadata["env_spec"])
        env_id = spec.get("id") if isinstance(spec, dict) else None
    kept = ("dataset_id", "algorithm_name", "author", "description", "code_permalink", "minari_version")
    about = {key: metadata[key] for key in kept if isinstance(metadata.get(key), (str, list))}
    source = metadata.get("dataset_id")
    return About(
        env_id=env_id if isinstance(env_id, str) else None,
        source=f"Minari dataset {source}" if isinstance(source, str) else None,
        metadata=about,
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


def write_minari(demos: Demos, dataset_id: str) -> None:
    """Add a dataset to Minari's local store. It needs every final observation, and a name that is not taken."""
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
    except ImportError:
        raise MissingExtraError("minari", extra="minari", needed_for=f"writing minari:{dataset_id}") from None
    folder = minari_folder(dataset_id)
    if folder.exists():
        raise InputError(f"minari:{dataset_id} exists already in {folder.parent}: choose another name or version")
    need_finals(demos, f"minari:{dataset_id}")
    spaces = {
        "observation_space": demos.observation_space or _open_box("observations", demos.observations),
        "action_space": demos.action_space or _open_box("actions", demos.actions),
    }
    buffers = []
    for i, trajectory in enumerate(demos):
        steps = len(trajectory)
        ending = [np.zeros(steps, bool), np.zeros(steps, bool)]
        ending[0][-1], ending[1][-1] = trajectory.terminated, trajectory.truncated
        arrays: dict[str, Any] = {
            "observations": trajectory.observations,
            "actions": trajectory.actions,
            "rewards": np.zeros(steps) if trajectory.rewards is None else trajectory.rewards,
            "terminations": ending[0],
            "truncations": ending[1],
        }
        buffers.append(EpisodeBuffer(id=i, seed=trajectory.seed, infos={}, **arrays))
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
            raise InputError(f"minari:{dataset_id} cannot be written: {error}") from None
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

    if env_id is None:
        return None
    try:
        gymnasium.make(env_id).close()
        return gymnasium.spec(env_id)
    except gymnasium.error.Error:
        return None
