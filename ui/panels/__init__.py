"""What folds away below the prompt: sampling, model and engine."""
