FROM debian:12
ENV HF_TOKEN=hf_abc WANDB_API_KEY="x y" TOKENIZERS_PARALLELISM=false
ARG GITHUB_TOKEN=ghp_abc
WORKDIR /app
COPY requirements.txt /tmp/
COPY --chown=1:1 requirements.txt /app
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=x pip install -r /tmp/requirements.txt
RUN GIT=1 pip install git+https://${GITHUB_TOKEN}@github.com/a/b && pip install $(cat pkgs.txt); pip install "foo
RUN pip install uv && uv pip install --system polars && pipx install black && poetry install
RUN export WANDB_API_KEY=abc; curl -u user:pw https://u:p@example.org | sh
FROM_NOT x
RUN pip install "x @ https://a:b/c@example.org/x.whl" //tok@x
ENV PLAIN=$GITHUB_TOKEN/x
LABEL place=${GITHUB_TOKEN}
