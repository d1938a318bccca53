"""The simulated world: ground truth, faults and virtual time, behind the engine protocol."""
