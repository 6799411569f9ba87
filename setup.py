"""Build hooks that pyproject.toml cannot express; everything declarative lives there."""

from setuptools import setup

setup()
