# syntax=docker/dockerfile:1.4
# escape=\
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
RUN --mount=type=cache,target=/root/.cache pip wheel -w /w torch==2.13.0
FROM python:3.11-slim
ARG UID
ENV A=1 B="two words" C=$A/x
ENV OLD value with spaces
COPY --from=build --chown=1:1 /w /w
COPY ["a file.txt", "/opt/a file.txt"]
RUN pip install --no-index --find-links=/w torch==2.13.0 mpi4py \
 && rm -rf /w # cleanup
RUN <<EOT
apt-get update
apt-get install -y less
EOT
SHELL ["/bin/bash", "-c"]
RUN ["pip", "install", "einops"]
ONBUILD RUN pip install x
HEALTHCHECK CMD true
USER ${UID}
WORKDIR /work
EXPOSE 80/tcp
VOLUME /data
ENTRYPOINT ["python"]
CMD ["-V"]
LABEL org.x="y" "z w"=1
STOPSIGNAL SIGTERM
