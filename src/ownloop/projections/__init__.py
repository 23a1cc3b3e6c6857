"""What people and clients see: pure folds of one event stream into the frames of a vocabulary."""
