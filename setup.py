"""Build hooks that pyproject.toml cannot express; everything declarative lives there.

The native CPU kernels are plain C. Where they cannot be built (no compiler, no Python headers) the
installation goes on without them, and `gradcent.kernels.native.reason()` says so at run time.
"""

import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

SOURCES = Path("src/gradcent/kernels/csrc")


class StableABIWheel(bdist_wheel):
    """One wheel for every Python from 3.10 on: the extension keeps to the stable ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the wheel's tag; a wheel without the kernels serves every Python on its platform."""
        python, abi, platform = super().get_tag()
        if not any(Path(self.bdist_dir).rglob("_cpu.*[!i]")):  # _cpu.pyi is there in any case
            return "py3", "none", platform
        if python.startswith("cp") and not sysconfig.get_config_var("Py_GIL_DISABLED"):
            return "cp310", "abi3", platform
        return python, abi, platform


setup(
    ext_modules=[
        Extension(
            "gradcent.kernels._cpu",
            sorted(str(path) for path in SOURCES.glob("*.c")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            # No FMA contraction: the same bits on every instruction set.
            extra_compile_args=[
                "-std=c11",
                "-O3",
                "-fno-math-errno",
                "-fno-trapping-math",
                "-ffp-contract=off",
                "-fvisibility=hidden",
                "-Wno-maybe-uninitialized",
            ],
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"bdist_wheel": StableABIWheel},
)
