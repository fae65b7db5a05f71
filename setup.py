"""Builds the compiled half of the Python package with CMake: pip install .

The system packages of tools/install-deps.sh --python are needed. DEEPINFER_BUILD_DIR is the build tree to use (default
build/pip-<version of Python>), so that a second installation is quick.
"""
import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    def build_extension(self, extension):
        tree = pathlib.Path(
            os.environ.get("DEEPINFER_BUILD_DIR") or ROOT / "build" / f"pip-{sys.implementation.cache_tag}")
        subprocess.run([
            "cmake", "-S",
            str(ROOT), "-B",
            str(tree), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DDEEPINFER_TESTS=OFF", "-DDEEPINFER_BENCH=OFF",
            f"-DPython_EXECUTABLE={sys.executable}"], check=True)
        subprocess.run(["cmake", "--build", str(tree), "--target", "deepinfer_python"], check=True)
        target = pathlib.Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        built, = (tree / "python" / "deepinfer").glob("_core.*.so")
        shutil.copy2(built, target)


setup(packages=["deepinfer"], package_dir={"deepinfer": "python/deepinfer"}, package_data={"deepinfer": ["py.typed"]},
      ext_modules=[Extension("deepinfer._core", sources=[])], cmdclass={"build_ext": CMakeBuild})
