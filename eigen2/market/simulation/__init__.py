"""The trading rules, environment, account and policies that do not learn."""
