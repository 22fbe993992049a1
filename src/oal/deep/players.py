"""What Algorithm 1 asks of its two players, and what it tells them.

    policy player:  π <- argmin  <c, π> + (1/t) d(π, π_old)            (mirror, mdpo, sac, mdpo_on, trpo)
    cost player:    c <- argmax  <c, μ_π - μ_E> - (1/t_c) d(c, c_old)  (costs.linear, costs.neural, costs.gail)

A player of your own is any object with these methods: see docs/extending.md.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np

from oal.deep.nets import MLP, ActionKind, HostActor
from oal.deep.replay import Batch, ExpertData, Pairs, Replay
from oal.envs import EnvSpec, Step

if TYPE_CHECKING:
    from oal.deep.arrays import Float, Float32, Int, PerRow, Scalar

Metrics = dict[str, Any]
"""Numbers to report, by name; device arrays, so that nobody waits for them before they are read."""
Snapshot = tuple[dict[str, np.ndarray], dict[str, Any]]
"""Named arrays and plain values from which a player goes on bit for bit."""


class Shapes(NamedTuple):
    """What the networks must know of an environment."""

    kind: ActionKind
    observation_size: int
    action_size: int

    @classmethod
    def of(cls, spec: EnvSpec) -> "Shapes":
        return cls("continuous" if spec.kind == "continuous" else "discrete", spec.observation_size, spec.action_size)


class Charge(NamedTuple):
    """What the policy pays, as it is when a batch is sampled."""

    cost: "PerRow"
    absorbing: "Scalar"
    """Of each step after a true termination."""


ChargeBatch = Callable[[Any, Batch], Charge]
"""(cost parameters, batch) -> what the policy pays, traceable by JAX; hashable, as it becomes part of a program."""


def recorded_cost(_: Any, batch: Batch) -> Charge:
    """Charge the environment's own cost; after a termination nothing more is paid."""
    return Charge(batch.cost, jnp.float32(0.0))


class Prices(NamedTuple):
    """What a step costs, by whose it is."""

    learner: float
    expert: float


@runtime_checkable
class PricesBySource(Protocol):
    """A cost player that has the loop record a price with each step, in place of the environment's own cost."""

    @property
    def prices(self) -> Prices: ...


class Game(NamedTuple):
    """What the loop tells a policy player before the first step.

    All observations that a player is given are normalised, if the learner's configuration says so.
    """

    shapes: Shapes
    seed: int
    environments: int
    memory: Replay
    """Every step that was taken, as far as the player (or else the cost player) wants them remembered."""
    charge: ChargeBatch
    expert_rows: "Float32[np.ndarray, 'N W']"
    """The expert's transitions in the memory's layout; none if the demonstrations hold none."""


@runtime_checkable
class PolicyPlayer(Protocol):
    """A policy that learns. `begin` is called once, before everything else.

    A block of the loop is: `work_ahead`, then `act` and `observe` at each of `block` steps, then `improve`. A player
    that learns from a memory of old steps updates in `work_ahead`, on a thread of the device while the simulator
    steps; one that learns from the steps just taken updates in `improve`, with the cost they were taken under.
    """

    name: ClassVar[str]
    gamma: float
    block: int
    actor: HostActor

    @property
    def remembers(self) -> int | None:
        """How many steps the loop keeps in memory for this player; None if it does not read them."""
        ...

    @property
    def ready(self) -> bool:
        """Whether the player learns yet; until then the cost stays as it is."""
        ...

    def begin(self, game: Game) -> None: ...
    def act(self, observation: "Float[np.ndarray, 'n O']", rng: np.random.Generator) -> "Float[np.ndarray, 'n A']": ...
    def observe(self, step: Step) -> None: ...
    def work_ahead(self, cost_params: Any) -> Metrics: ...
    def improve(self, cost_params: Any) -> Metrics: ...
    def settle(self) -> None:
        """Wait for the updates under way, and act by what they learned."""
        ...

    def adopt(self, members: Sequence[MLP]) -> None:
        """Start from these actors, which were cloned from demonstrations: one, or an ensemble."""
        ...

    def snapshot(self) -> Snapshot: ...
    def restore(self, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None: ...


@runtime_checkable
class CostPlayer(Protocol):
    """A cost that learns: pure functions over a state that the loop keeps, a pytree of arrays with a field `view`.

    The player itself is the `ChargeBatch` of the policy player, whose cost parameters are the state's `view`.
    """

    name: ClassVar[str]

    @property
    def update_every(self) -> int:
        """Environment steps between two rounds."""
        ...

    @property
    def remembers(self) -> int:
        """How many of the learner's newest steps this player learns from."""
        ...

    def sized(self, observation_size: int, action_size: int, gamma: float) -> "CostPlayer":
        """Return this player for an environment's sizes and the policy player's discount."""
        ...

    def init(self, seed: int, expert: Pairs, ended: float) -> Any:
        """Draw a fresh state, given all of the expert's pairs and the share of its episodes that truly ended."""
        ...

    def weigh(self, times: "Int[np.ndarray, '*n']") -> "Float[np.ndarray, '*n']":
        """How much steps at these times of their episodes count."""
        ...

    def draw(self, memory: Replay, expert: ExpertData, rng: np.random.Generator) -> tuple[Pairs, Pairs]:
        """Choose the learner's and the expert's pairs for one round."""
        ...

    def update(self, state: Any, learner: Pairs, expert: Pairs, masses: tuple[float, float]) -> tuple[Any, Metrics]:
        """Play one round; `masses` are the discounted masses of both players behind true terminations."""
        ...

    def __call__(self, view: Any, batch: Batch) -> Charge: ...
