"""One-shot distributed clustered learning."""

__version__ = "0.1.0"
