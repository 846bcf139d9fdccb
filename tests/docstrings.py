"""Docstrings do not change while tests run: read once, not for each of the hundreds of command lines."""

import functools

import docstring_parser

docstring_parser.parse_from_object = functools.cache(docstring_parser.parse_from_object)
