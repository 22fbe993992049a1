"""Film one episode."""

import importlib.util
import math
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from oal.base import files
from oal.envs.spec import Act, ActionCodec, EnvSource, EnvSpec, describe, flattener, make
from oal.errors import InputError, at_least


def record_video(
    source: EnvSource,
    act: Act,
    path: str | os.PathLike[str],
    *,
    reset_seed: int = 0,
    horizon: int | None = None,
    frames: int = 200,
    picture_size: int = 240,
) -> float:
    """Film one episode as .gif or .mp4 in at most about `frames` pictures; return the episode's return.

    A function must take a `render_mode`, or make the environment with render mode rgb_array.
    """
    path = Path(path)
    if path.suffix not in (".gif", ".mp4"):
        raise InputError(f"{path}: a video is a .gif or an .mp4 file")
    at_least("frames", frames, 1)
    if "MUJOCO_GL" not in os.environ and not os.environ.get("DISPLAY"):
        os.environ["MUJOCO_GL"] = "egl"  # without a screen MuJoCo draws off-screen only if told how
    env = make(source, horizon=horizon, render_mode="rgb_array", picture_size=picture_size)
    try:
        spec = describe(env, horizon=horizon)
        codec, flatten = ActionCodec(spec), flattener(env.observation_space)
        observation, _ = env.reset(seed=reset_seed)
        every = math.ceil(spec.horizon / frames)
        pictures: list[np.ndarray] = []
        total, step, done = 0.0, 0, False
        while not done:
            if step % every == 0:
                pictures.append(_frame(env, spec))
            flat = np.asarray(observation if flatten is None else flatten(observation), np.float32)
            observation, reward, terminated, truncated, _ = env.step(codec.decode(act(flat[None]))[0])
            total += math.nan if reward is None else float(reward)
            step += 1
            done = terminated or truncated
        pictures.append(_frame(env, spec))
        fps = max(1.0, float(env.metadata.get("render_fps") or 30) / every)
        _write_video(path, pictures, fps)
        return total
    finally:
        env.close()


def _frame(env: gym.Env, spec: EnvSpec) -> np.ndarray:
    try:
        frame: Any = env.render()
    except gym.error.Error as error:
        raise InputError(f"{spec.env_id} cannot be drawn: {error}") from None
    if not isinstance(frame, np.ndarray):
        raise InputError(f"{spec.env_id} gives no picture in render mode rgb_array")
    return frame


def _write_video(path: Path, frames: list[np.ndarray], fps: float) -> None:
    if path.suffix == ".gif":
        from PIL import Image

        pictures = [Image.fromarray(frame).quantize(64) for frame in frames]
        with files.replacing(path) as temporary:
            pictures[0].save(
                temporary, save_all=True, append_images=pictures[1:], duration=round(1000 / fps), loop=0, optimize=False
            )
        return
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise InputError(f"{path}: an .mp4 needs  pip install imageio-ffmpeg ; a .gif needs nothing more")
    from imageio import v2 as imageio

    with files.replacing(path) as temporary:
        write_movie: Any = imageio.mimwrite
        write_movie(temporary, frames, fps=fps)
