"""The search for the reward's weights β (MLFS §3.4): ten rounds of Bayesian optimisation, then small variations of the best.

The paper keeps the β with the highest reward, but a reward depends on its own β: whoever doubles all five doubles it. So each
candidate is judged by one measure that is none's own (`specs` A13): the mean of the five normalised terms, equally weighted, on
held-out jobs, of the network that a short training with this β gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headway.core.errors import UserError
from headway.learn.rollout import Played
from headway.metrics.reward import BETAS, TERM_NAMES, TERMS

Betas = tuple[float, ...]
ROUNDS, VARIATIONS = 10, 5
SPREAD = 0.15
"""Of the logarithm of each weight, in a small variation."""
LOW = 0.02


@dataclass(frozen=True, slots=True)
class Candidate:
    """A β and what the network that was trained with it is worth; None: it could not be told."""

    betas: Betas
    score: float | None
    how: str
    """`paper`, `bayesian` or `variation`."""


def equal_score(played: Sequence[Played]) -> float | None:
    """The mean of the five terms over all rounds of held-out episodes, each episode the same; None where one did not end."""
    means = [float(one.goals.mean()) if len(one.goals) else math.nan for one in played]
    return math.fsum(means) / len(means) if means and all(map(math.isfinite, means)) else None


def search_betas(
    worth: Callable[[Betas], float | None], *, seed: int = 0, rounds: int = ROUNDS, variations: int = VARIATIONS,
    tell: Callable[[Candidate], None] | None = None,
) -> list[Candidate]:  # fmt: skip
    """Every candidate in turn; the first is the paper's. `worth` trains with a β and returns its score, more is better.

    Raises:
        UserError: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise UserError("needs Optuna: pip install 'headway[tune]'", key="search-beta") from None
    found: list[Candidate] = []

    def judged(betas: Betas, how: str) -> float | None:
        score = worth(betas)
        found.append(Candidate(betas, score, how))
        if tell is not None:
            tell(found[-1])
        return score

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=4))
        study.enqueue_trial(dict(zip(TERM_NAMES, BETAS, strict=True)))
        for number in range(rounds):
            trial = study.ask({name: optuna.distributions.FloatDistribution(LOW, 1.0) for name in TERM_NAMES})
            score = judged(tuple(trial.params[name] for name in TERM_NAMES), "bayesian" if number else "paper")
            if score is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, score)
    finally:
        optuna.logging.set_verbosity(before)
    for number in range(variations):
        centre = best_of(found)
        if centre is None:
            break
        drawn = np.random.default_rng([seed, number]).normal(0.0, SPREAD, TERMS)
        judged(tuple(float(b) for b in np.clip(np.array(centre.betas) * np.exp(drawn), LOW, 1.0)), "variation")
    return found


def best_of(candidates: Sequence[Candidate]) -> Candidate | None:
    """The candidate with the highest score, the earlier of equals; None where none has one."""
    known = [(candidate.score, -number, candidate) for number, candidate in enumerate(candidates) if candidate.score is not None]
    return max(known, key=lambda entry: entry[:2])[2] if known else None
