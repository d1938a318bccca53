"""Learning to schedule: a policy network is trained by imitation and by rollouts in the simulator, and kept as a model folder."""
