"""Parse each docstring once, not for each of the hundreds of command lines; they do not change during tests."""

import functools

import docstring_parser

docstring_parser.parse_from_object = functools.cache(docstring_parser.parse_from_object)
