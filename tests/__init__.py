"""Tests of eigen2; `checked` is the type checker that jaxtyping runs on eigen2 meanwhile."""

from beartype import BeartypeConf, beartype

# an int is a float wherever Python's type checkers say so
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
