# For GPUs: the wheels of torch bring CUDA, so the host needs a driver and the NVIDIA Container Toolkit alone.
#   docker build -t paper-repro .
#   docker run --gpus all -v "$PWD/data:/repo/data" -v "$PWD/runs:/repo/runs" paper-repro scripts/reproduce.py cem/fig2a scale=gpu
FROM python:3.11-slim
# Triton compiles its launchers with gcc; a record names the commit, which git reads.
RUN apt-get update && apt-get install -y --no-install-recommends gcc git libc6-dev make && rm -rf /var/lib/apt/lists/*
WORKDIR /repo
COPY . .
RUN git config --global --add safe.directory /repo && make environment PYTHON=python3
ENTRYPOINT [".venv/bin/python"]
