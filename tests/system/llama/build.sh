#!/bin/sh
# Builds llama.cpp's llama-server from the source that the package llama-cpp-python ships: build.sh FOLDER VERSION
# 8 minutes on two cores and 400 MB, once: the program is FOLDER/build/bin/llama-server.
set -eu
folder=$1
version=$2
mkdir -p "$folder"
cd "$folder"
# CMake and Ninja come from their packages, so a compiler is all that the machine has to have.
[ -x tools/bin/cmake ] || { python3 -m venv tools && tools/bin/pip install --quiet cmake ninja; }
[ -d source ] || {
    tools/bin/pip download --quiet --no-deps --no-binary llama-cpp-python --dest . "llama-cpp-python==$version"
    mkdir -p unpacked
    tar -xzf "llama_cpp_python-$version.tar.gz" -C unpacked
    mv "unpacked/llama_cpp_python-$version/vendor/llama.cpp" source
    rm -r unpacked "llama_cpp_python-$version.tar.gz"
}
PATH="$folder/tools/bin:$PATH"
cmake -S source -B build -G Ninja -DCMAKE_CXX_FLAGS=-O1 -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DBUILD_SHARED_LIBS=ON
cmake --build build --target llama-server
