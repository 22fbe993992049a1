"""The replay memory: what goes in comes out, oldest overwritten first."""

import numpy as np
import pytest

from oal.deep.replay import Replay, unpack, walk
from oal.errors import InputError


def numbered(start: int, count: int) -> tuple[np.ndarray, ...]:
    """Transitions whose every number tells which one it is."""
    number = np.arange(start, start + count, dtype=np.float32)
    return (
        np.stack([number, number + 0.1, number + 0.2], axis=1),
        np.stack([number + 0.3, number + 0.4], axis=1),
        number + 0.5,
        np.stack([number + 0.6, number + 0.7, number + 0.8], axis=1),
        number % 2,
    )


def test_parts_of_a_transition_stay_together() -> None:
    replay = Replay(10, 3, 2)
    replay.add(*numbered(0, 7))
    batch = unpack(replay.rows[replay.places(np.random.default_rng(0), 4, 5)], 3, 2)
    assert batch.observation.shape == (4, 5, 3)
    assert batch.cost.shape == (4, 5)
    number = batch.observation[..., 0]
    np.testing.assert_allclose(batch.action[..., 1], number + 0.4, rtol=1e-6)
    np.testing.assert_allclose(batch.cost, number + 0.5, rtol=1e-6)
    np.testing.assert_allclose(batch.next_observation[..., 2], number + 0.8, rtol=1e-6)
    np.testing.assert_array_equal(batch.terminated, number % 2)


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_the_ring_keeps_the_newest(chunk: int) -> None:
    replay = Replay(10, 3, 2)
    for start in range(0, 24, chunk):
        replay.add(*numbered(start, chunk))
    assert len(replay) == 10
    kept = sorted(unpack(replay.rows, 3, 2).observation[:, 0].tolist())
    assert kept == list(range(14, 24))
    assert unpack(replay.last(4), 3, 2).observation[:, 0].tolist() == [20, 21, 22, 23]


def test_sampling_is_uniform_over_what_is_there_and_repeats_with_its_seed() -> None:
    replay = Replay(1_000, 3, 2)
    replay.add(*numbered(0, 20))
    drawn = unpack(replay.rows[replay.places(np.random.default_rng(0), 20_000)], 3, 2).observation[:, 0].astype(int)
    counts = np.bincount(drawn, minlength=20)
    assert len(counts) == 20
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    again = unpack(replay.rows[replay.places(np.random.default_rng(0), 20_000)], 3, 2).observation[:, 0].astype(int)
    np.testing.assert_array_equal(drawn, again)


@pytest.mark.parametrize("added", [20, 47], ids=["filling", "full"])
def test_newer_steps_are_drawn_more_often_by_their_share_of_the_age(added: int) -> None:
    """P(age < k of n) = (k/n)^(1/recency): half of the draws of recency 2 are of the newest quarter."""
    replay = Replay(20, 3, 2)
    for start in range(added):
        replay.add(*numbered(start, 1))
    rng = np.random.default_rng(0)
    drawn = unpack(replay.rows[replay.places(rng, 40_000, recency=2.0)], 3, 2).observation[:, 0].astype(int)
    counts = np.bincount(added - 1 - drawn, minlength=20)
    assert len(counts) == 20, "nothing but what is there"
    expected = 40_000 * np.diff(np.sqrt(np.arange(21) / 20))
    assert ((counts - expected) ** 2 / expected).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    assert counts[:5].sum() == pytest.approx(20_000, rel=0.02)


def test_saved_and_restored_also_into_a_larger_ring() -> None:
    replay = Replay(5, 3, 2)
    for start in range(0, 8, 1):
        replay.add(*numbered(start, 1))
    arrays, counters = replay.state()
    same, larger = Replay(5, 3, 2), Replay(9, 3, 2)
    same.restore(arrays, counters)
    np.testing.assert_array_equal(same.rows, replay.rows)
    assert same.position == replay.position
    larger.restore(arrays, counters)
    larger.add(*numbered(8, 2))
    assert unpack(larger.last(7), 3, 2).observation[:, 0].tolist() == [3, 4, 5, 6, 7, 8, 9]


def played(replay: Replay, rounds: int, rng: np.random.Generator, sources: int = 3) -> list[tuple[int, int, int]]:
    """Store episodes of random lengths, some sources missing each round; return (source, episode, time) of each."""
    episode, time, stored = [0] * sources, [0] * sources, []
    for _ in range(rounds):
        acting = np.flatnonzero(rng.random(sources) < 0.8)
        names = [(int(i), episode[i], time[i]) for i in acting]
        number = np.arange(len(stored), len(stored) + len(acting), dtype=np.float32)
        parts = (np.tile(number[:, None], 3), np.zeros((len(acting), 2)), number, np.zeros((len(acting), 3)), number)
        replay.add(*parts, time=np.array([name[2] for name in names], int), source=acting)
        stored += names
        for i in acting:
            ended = rng.random() < 0.2
            episode[i], time[i] = episode[i] + ended, 0 if ended else time[i] + 1
    return stored


@pytest.mark.parametrize("capacity", [200, 40])
def test_a_walk_follows_one_episode_of_one_environment(capacity: int, rng: np.random.Generator) -> None:
    """Against a search for the step with the same source, the same episode and the next time; also after a restart."""
    replay = Replay(capacity, 3, 2)
    stored = played(replay, 60, rng)
    resumed = Replay(capacity + 7, 3, 2)
    arrays, counters = replay.state()
    resumed.restore({name: array.copy() for name, array in arrays.items()}, counters)
    longest = 0
    for memory in (replay, resumed):
        place = memory.newest(len(memory))
        kept = {stored[int(memory.rows[p, 0])]: int(memory.rows[p, 0]) for p in place}
        places, there = walk(memory.hops, place, 4)
        for row, (walked, was) in enumerate(zip(places, there, strict=True)):
            source, episode, time = stored[int(memory.rows[place[row], 0])]
            expected = [kept.get((source, episode, time + j)) for j in range(4)]
            known = [number for number in expected if number is not None]
            assert was.tolist() == [number is not None for number in expected]
            assert memory.rows[walked, 0].astype(int).tolist() == known + known[-1:] * (4 - len(known))
            longest = max(longest, len(known))
    assert longest == 4


def test_a_walk_goes_on_where_steps_come_after_a_restart() -> None:
    """The steps of 20 rounds, of which the second memory is given the last 10 after it was saved and read again."""
    one, other = Replay(50, 3, 2), Replay(50, 3, 2)
    for start in range(20):
        if start == 10:
            arrays, counters = one.state()
            other.restore({name: array.copy() for name, array in arrays.items()}, counters)
        for memory in (one,) if start < 10 else (one, other):
            memory.add(*numbered(2 * start, 2), time=np.full(2, start), source=np.array([0, 1]))
    np.testing.assert_array_equal(one.hops, other.hops)
    assert one.hops[[18, 19]].tolist() == [2, 2], "the first steps after the restart are known to those before it"


def test_steps_of_no_environment_are_not_linked() -> None:
    replay = Replay(10, 3, 2)
    replay.add(*numbered(0, 7), time=np.arange(7))
    assert not replay.hops.any()


def test_misuse_is_named() -> None:
    replay = Replay(5, 3, 2)
    arrays, counters = replay.state()
    with pytest.raises(InputError, match="no environment"):
        replay.restore({**arrays, "rows": arrays["rows"][:0], "sources": np.array([3])}, counters)
    rows = {"rows": np.zeros((2, replay.rows.shape[1]), np.float32), "sources": np.array([0, 40_000])}
    with pytest.raises(InputError, match="no environment"):
        replay.restore(rows, {"size": 2, "position": 2})
    with pytest.raises(InputError, match="empty"):
        replay.places(np.random.default_rng(0), 3)
    with pytest.raises(InputError, match="do not fit"):
        replay.add(*numbered(0, 6))
    with pytest.raises(InputError, match="saved replay"):
        replay.restore({"rows": np.zeros((2, 99), np.float32)}, {"size": 2, "position": 2})
    with pytest.raises(InputError, match="capacity"):
        Replay(0, 3, 2)
