# Run by the part "container" of `make soak`: built with buildah 1.28 upon Debian 12 with its Python 3.11, not upon python:3.12-slim and
# not by docker; commands, and a DMQ node with its health check, ran in it. Give `--format docker` to buildah: it leaves the health check out otherwise.
# An image with the command `stagepost`, Spark's Java and the dashboard: docker build -t stagepost .
# --build-arg BASE=IMAGE takes another base, which needs `python` with venv.
ARG BASE=python:3.12-slim
FROM ${BASE} AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY requirements ./requirements
COPY tools/project_metadata.py ./tools/
COPY src ./src
RUN python -m venv /opt/stagepost \
 && /opt/stagepost/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt \
 && /opt/stagepost/bin/pip install --no-cache-dir --require-hashes -r requirements/demo.txt \
 && /opt/stagepost/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM ${BASE}
COPY --from=build /opt/stagepost /opt/stagepost
ENV PATH=/opt/stagepost/bin:$PATH
# Data folders must belong to the user that runs the node, and to nobody else.
RUN useradd --create-home --uid 10001 stagepost && install -d -m 700 -o stagepost -g stagepost /data
USER stagepost
WORKDIR /data
VOLUME /data
# 3141: DMQ peers. Metrics and the dashboard listen on 127.0.0.1 inside of the container and are not published.
EXPOSE 3141
HEALTHCHECK --interval=30s --timeout=12s --start-period=20s CMD ["sh", "-c", "stagepost check --data /data; test $? -le 1"]
ENTRYPOINT ["stagepost"]
CMD ["--help"]
