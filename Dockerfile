# A broker in a container:
#   docker build -t quiverlog .
#   docker run -p 127.0.0.1:9292:9292 -p 127.0.0.1:9293:9293 -v quiverlog-data:/data quiverlog
#
# The broker listens on every address of the container, because the container's loopback cannot be
# published. It has no authentication and no encryption unless configured: any program that can
# reach port 9292 may read, write and delete everything. So publish the ports to 127.0.0.1 as above, or to a
# network that only the clients are in; `-p 9292:9292` alone offers them to every machine that can
# reach this one.
#
# Clients are told the address to come back to: docs/deploying.md says which one to give. Three
# brokers at once: compose.yaml.
#
# Plain instructions only, so that every builder can build it. Another base needs Python 3.11 or newer
# with venv. Without a package index the wheels come from build/wheels (scripts/containers.sh fills
# it): --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels
ARG BASE=python:3.12-slim

# What the broker needs, in a layer that stays as long as the dependencies do.
FROM ${BASE} AS dependencies
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
COPY LICENSE build/wheels/*.whl /wheels/
COPY requirements-image.txt /src/
# Every file that is installed has a hash that is written down here: the index is not trusted.
RUN python3 -m venv /opt/quiverlog \
 && /opt/quiverlog/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /src/requirements-image.txt

FROM dependencies AS package
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
COPY requirements-build.txt /src/
RUN /opt/quiverlog/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /src/requirements-build.txt
COPY pyproject.toml *.md LICENSE compose.yaml /src/
COPY docs /src/docs
COPY examples /src/examples
COPY ops /src/ops
COPY broker /src/broker
COPY connector /src/connector
COPY demo /src/demo
RUN /opt/quiverlog/bin/pip install --no-cache-dir --disable-pip-version-check --no-index --no-deps --no-build-isolation --root /staging /src

# Neither pip nor what only builds and tests need: less to carry, less to attack.
FROM dependencies AS trimmed
RUN /opt/quiverlog/bin/pip uninstall --yes --quiet --disable-pip-version-check pip \
 && rm -rf /opt/quiverlog/lib/python3*/site-packages/setuptools* \
           /opt/quiverlog/lib/python3*/site-packages/pkg_resources \
           /opt/quiverlog/lib/python3*/site-packages/pyarrow/include \
           /opt/quiverlog/lib/python3*/site-packages/pyarrow/tests

FROM ${BASE}
RUN echo 'quiverlog:x:10001:10001::/data:/usr/sbin/nologin' >>/etc/passwd \
 && echo 'quiverlog:x:10001:' >>/etc/group \
 && mkdir -m 700 /data /secret && chown 10001:10001 /data /secret
COPY --from=trimmed /opt/quiverlog /opt/quiverlog
COPY --from=package /staging/ /
ENV PATH=/opt/quiverlog/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    QUIVERLOG_DATA_DIR=/data \
    QUIVERLOG_LISTEN=0.0.0.0:9292 \
    QUIVERLOG_HTTP_LISTEN=0.0.0.0:9293
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 9292 9293
# /healthz: the loop turns. A broker that waits for others is healthy; /readyz says when it takes
# clients (compose.yaml asks for that).
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python3", "-ISc", "import urllib.request as r; r.urlopen('http://127.0.0.1:9293/healthz', timeout=4)"]
# SIGTERM (docker stop) drains, flushes and writes the clean-shutdown mark. Give it the time:
# docker stop -t 60, stop_grace_period in compose.yaml.
STOPSIGNAL SIGTERM
ENTRYPOINT ["quiverlog"]
CMD ["broker"]
