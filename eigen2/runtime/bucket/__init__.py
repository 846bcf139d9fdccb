"""Checkpoints in a bucket on S3 or Google Cloud Storage."""
