"""A training: its phases one after the other, a checkpoint after each iteration, the best network by its held-out score.

All randomness follows from the spec's seed, the phase and the iteration, so that a training that was stopped goes on as if it had
not been. How long it goes on is the caller's: `left_s` tells how much time is left.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from headway.core.errors import UserError
from headway.learn.artefact import save_model, write_together
from headway.learn.judge import Verdict, judge, switch
from headway.learn.nets import masked
from headway.learn.phases import Arrays, Phase, phase_of
from headway.learn.rollout import Episode, Kept, Played, Run, Sample, Setting, play, world_of
from headway.learn.spec import Json, TrainSpec
from headway.policies.mlfs.artefact import FEATURES
from headway.policies.mlfs.net import Net

CURVE, STATE, STATE_ARRAYS, CHECKPOINT = "curve.jsonl", "state.json", "arrays.safetensors", "checkpoint"
IMITATION_FRAC = 0.35
"""Of the time, at most, where another phase follows."""
RESERVE = 1.5
"""So many evaluations' time is kept for the last one."""
Tell = Callable[[Json], None]


class Training:
    """A training in a folder. It is the ground of its phases."""

    def __init__(self, spec: TrainSpec, folder: Path, run: Run, start: Net | None = None, recorded: Sample | None = None) -> None:
        """`recorded`: what a journal says was decided.

        Raises:
            UserError: the folder holds a training of another spec, or one that cannot be read.
        """
        self.spec, self.folder, self.run = spec, folder, run
        self.first = masked(start or Net.plain(spec.seed), spec.masks)
        self.digest = hashlib.sha256(
            json.dumps(spec.to_json(), sort_keys=True).encode()
            + b"".join(array.tobytes() for array in self.first.to_arrays().values())
        ).hexdigest()
        self.recorded: Mapping[str, Sequence[Kept]] | None = recorded.kept if recorded is not None else None
        self.bases: dict[tuple[Setting, int], Played] = {}
        self.ranges: dict[str, NDArray[np.float32]] = {}
        self.curve: list[Json] = []
        self.rewards: list[list[float]] = []
        self.at = {"phase": 0, "iteration": 0}
        self.begun, self.best = self.first, self.first
        self.verdict: Verdict | None = None
        self.now: Phase | None = None
        self.judge_s = 0.0
        if recorded is not None:
            self.saw(recorded.ranges)
        self._resume()

    # -- the ground of the phases ---------------------------------------------------------------------------------
    def play(self, episodes: Sequence[Episode]) -> list[Played]:
        """Run episodes; in their order."""
        found: list[Played | None] = [None] * len(episodes)
        asked = [replace(episode, normalize=self.spec.normalize) for episode in episodes]
        for index, played in self.run(play, asked):
            found[index] = played
        return [played for played in found if played is not None]

    def base(self, setting: Setting, seed: int) -> Played:
        """The teacher's episode of these jobs, which is run once."""
        if (setting, seed) not in self.bases:
            self.need([(setting, seed)])
        return self.bases[setting, seed]

    def need(self, cases: Sequence[tuple[Setting, int]]) -> None:
        """Have the teacher run these jobs, side by side."""
        missing = [case for case in dict.fromkeys(cases) if case not in self.bases]
        episodes = [Episode(setting, seed, teacher=self.spec.teacher) for setting, seed in missing]
        self.bases |= dict(zip(missing, self.play(episodes), strict=True))

    def saw(self, ranges: Mapping[str, NDArray[np.float32]]) -> None:
        """Widen the ranges that the network was trained on."""
        for head, of in ranges.items():
            if head in self.ranges:
                old = self.ranges[head]
                of = np.stack([np.minimum(old[:, 0], of[:, 0]), np.maximum(old[:, 1], of[:, 1])], 1)
            self.ranges[head] = of

    # -- the loop -------------------------------------------------------------------------------------------------
    def go(self, left_s: Callable[[], float], *, iterations: int | None = None, tell: Tell | None = None) -> None:
        """Train until the phases are done or the time is up; `iterations`: at most so many of each phase."""
        spec = self.spec
        total = left_s()
        if self.verdict is None:
            self.need([(setting, seed) for setting in spec.settings for seed in spec.held_out])
            self._look("start", self.first, left_s, tell)
            self._ranges_of_plain()
            self._checkpoint()
        while self.at["phase"] < len(spec.phases):
            name = spec.phases[self.at["phase"]]
            last = self.at["phase"] == len(spec.phases) - 1
            until = 0.0 if last or name != "imitate" else (1 - IMITATION_FRAC) * total
            if self.now is None:
                self.now = phase_of(name)(self, self.begun, None, None)
            looked = True
            while not self.now.done and (iterations is None or self.at["iteration"] < iterations):
                if left_s() <= max(until, RESERVE * self.judge_s):
                    break
                facts = self._iterate(name)
                looked = self.at["iteration"] % spec.judge_every == 0 and name != "imitate"
                if looked:
                    facts |= self._look(name, self.now.net(), left_s, None)
                self._note(facts, tell)
                self._checkpoint()
            if not looked:
                self._look(name, self.now.net(), left_s, tell)
            if not last or left_s() > RESERVE * self.judge_s:
                self.begun, self.now = self.now.net(), None
                self.at = {"phase": self.at["phase"] + 1, "iteration": 0}
            self._checkpoint()
            if self.now is not None:
                break

    def _iterate(self, name: str) -> Json:
        assert self.now is not None, "a phase has begun"
        entropy = [self.spec.seed, zlib.crc32(name.encode()), self.at["phase"], self.at["iteration"]]
        facts = self.now.iterate(np.random.default_rng(entropy))
        self.at["iteration"] += 1
        return {"phase": name, "iteration": self.at["iteration"], **facts}

    def _look(self, name: str, net: Net, left_s: Callable[[], float], tell: Tell | None) -> Json:
        """Judge a network on held-out jobs; it is kept if it is the best so far."""
        before = left_s()
        found = judge(self, net)
        if math.isfinite(before):
            self.judge_s = max(before - left_s(), 0.0)
        self.rewards.append(list(found.rewards))
        best = self.verdict is None or found.score > self.verdict.score
        if best:
            self.best, self.verdict = net, found
        facts = {**found.to_json(), "kept": best}
        if tell is not None or name == "start":
            self._note({"phase": name, "iteration": self.at["iteration"], **facts}, tell)
        return facts

    def _note(self, facts: Json, tell: Tell | None) -> None:
        self.curve.append(facts)
        if tell is not None:
            tell(facts)

    def _ranges_of_plain(self) -> None:
        """The ranges of the features on the first training seed of each setting, as the first network sees them."""
        spec = self.spec
        arrays = self.first.to_arrays()
        episodes = [Episode(setting, spec.seeds[0], teacher=spec.teacher, arrays=arrays, keep=1) for setting in spec.settings]
        for played in self.play(episodes):
            self.saw(played.ranges)

    # -- what is kept ---------------------------------------------------------------------------------------------
    def finish(self, about: Mapping[str, Any], card: Callable[[Json], str]) -> Json:
        """Write the model, the best network by its held-out score, and return its manifest."""
        assert self.verdict is not None, "a training begins with a look"
        spec = self.spec
        ranges = {head: self.ranges.get(head, np.zeros((len(names), 2), np.float32)) for head, names in FEATURES.items()}
        told: Json = {
            "teacher": spec.teacher,
            "settings": [
                {"workload": s.workload, "cluster": s.cluster, "sharing": s.sharing, "beside": s.beside,
                 "sha256": [world_of(s, seed)[0].sha256 for seed in spec.seeds]}
                for s in spec.settings
            ],
            "seeds": list(spec.seeds), "held_out": list(spec.held_out), "betas": list(spec.weights),
            "params": spec.to_json(),
            "iterations": sum("iteration" in entry and entry["phase"] != "start" for entry in self.curve),
            "scores": self.verdict.to_json(),
            "switch": switch(self.rewards, self.verdict),
            **about,
        }  # fmt: skip
        return save_model(self.folder, self.best, spec.kind, ranges, told, card(told))

    def _checkpoint(self) -> None:
        assert self.verdict is not None, "a training begins with a look"
        arrays: Arrays = {f"ranges.{head}": of for head, of in self.ranges.items()}
        for name, net in (("begun", self.begun), ("best", self.best)):
            arrays |= {f"{name}.{key}": array for key, array in net.to_arrays().items()}
        if self.now is not None:
            arrays |= {f"phase.{key}": np.asarray(array) for key, array in self.now.arrays().items()}
        for number, played in enumerate(self.bases.values()):
            arrays[f"goals.{number}"] = played.goals
        content = save({key: np.ascontiguousarray(array) for key, array in arrays.items()})
        v = self.verdict
        state = {
            "digest": self.digest, "at": self.at, "facts": self.now.facts() if self.now else None, "curve": self.curve,
            "rewards": self.rewards, "judge_s": self.judge_s, "arrays_sha256": hashlib.sha256(content).hexdigest(),
            "verdict": [v.score, v.reward, v.teacher_reward, v.rewards, v.gains],
            "bases": [[self.spec.settings.index(s), seed, p.figures] for (s, seed), p in self.bases.items()],
        }  # fmt: skip
        write_together(self.folder / CHECKPOINT, {STATE_ARRAYS: content, STATE: json.dumps(state).encode()})
        lines = "".join(json.dumps(entry, allow_nan=False, separators=(",", ":")) + "\n" for entry in self.curve)
        write_together(self.folder, {CURVE: lines.encode()})

    def _resume(self) -> None:
        at = self.folder / CHECKPOINT
        if not (at / STATE).exists():
            return
        try:
            content = (at / STATE_ARRAYS).read_bytes()
            state = json.loads((at / STATE).read_bytes())
            if state["digest"] != self.digest:
                told = "holds a training with other settings: go on with the same ones, or train into another folder"
                raise UserError(told, file=str(self.folder), key="out")
            if hashlib.sha256(content).hexdigest() != state["arrays_sha256"]:
                raise ValueError("the arrays are not those of the state")
            self._take(state, load(content))
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise UserError(f"holds no whole checkpoint: {error}", file=str(at), key="out") from None

    def _take(self, state: Json, arrays: Arrays) -> None:
        def of(prefix: str) -> Arrays:
            return {key[len(prefix) :]: array for key, array in arrays.items() if key.startswith(prefix)}

        self.at, self.curve, self.rewards, self.judge_s = state["at"], state["curve"], state["rewards"], state["judge_s"]
        score, mine, teacher, rewards, gains = state["verdict"]
        self.verdict = Verdict(score, mine, teacher, tuple(rewards), gains)
        self.begun, self.best = Net.from_arrays(of("begun.")), Net.from_arrays(of("best."))
        self.ranges = of("ranges.")
        for number, (index, seed, figures) in enumerate(state["bases"]):
            self.bases[self.spec.settings[index], seed] = Played(figures, arrays[f"goals.{number}"])
        if state["facts"] is not None:
            self.now = phase_of(self.spec.phases[self.at["phase"]])(self, self.begun, of("phase."), state["facts"])
