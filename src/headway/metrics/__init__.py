"""Folds over the journal: completion times, waiting, utilisation, fairness and lower bounds."""
