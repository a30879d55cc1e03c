FROM mambaorg/micromamba:1.5
COPY env.yml /tmp/env.yml
RUN micromamba install -y -n base -f /tmp/env.yml && micromamba clean -a -y
RUN conda install -c conda-forge mpi4py openmpi=4.1.* pytorch
