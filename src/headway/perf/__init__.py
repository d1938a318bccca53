"""What jobs do on what they run on: step times, the catalogue of models, curves, and the estimators that fit them."""
