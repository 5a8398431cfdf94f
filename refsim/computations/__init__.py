"""A computation as data: its inputs, its steps, the ways of doing each; outputs, words and causes are read from it."""
