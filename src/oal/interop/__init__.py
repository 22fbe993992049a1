"""Bridges to other libraries, each in its own module and loaded only when asked for."""
