"""`oal cite`: what to cite."""

import typer

from oal import __version__

PAPER = """@inproceedings{shani2022online,
  title     = {Online Apprenticeship Learning},
  author    = {Shani, Lior and Zahavy, Tom and Mannor, Shie},
  booktitle = {Proceedings of the AAAI Conference on Artificial Intelligence},
  volume    = {36},
  number    = {8},
  pages     = {8240--8248},
  year      = {2022},
  doi       = {10.1609/aaai.v36i8.20798},
}"""
SOFTWARE = """@software{oal,
  title   = {oal: online apprenticeship learning in Python},
  author  = {{The oal authors}},
  version = {%s},
  license = {MIT},
}"""


def cite() -> None:
    """Print what to cite, as BibTeX: the paper, and this software in its version."""
    typer.echo(f"{PAPER}\n\n{SOFTWARE % __version__}")
