"""What running jobs tell of their progress, read from where they leave it: report files, output, TensorBoard files, MLflow."""
