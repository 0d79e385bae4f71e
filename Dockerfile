# A broker in a container:
#   docker build -t quiverlog .
#   docker run -p 127.0.0.1:9292:9292 -p 127.0.0.1:9293:9293 -v quiverlog-data:/data quiverlog
#
# The broker listens on every address of the container, because the container's loopback cannot be
# published. It has no authentication and no encryption yet: whoever can reach port 9292 may read,
# write and delete everything. So publish the ports to 127.0.0.1 as above, or to a network that only
# the clients are in; `-p 9292:9292` alone offers them to every machine that can reach this one.
#
# Clients are told the address to come back to: give `--advertise HOST:PORT` (docs/config.md) when it
# is not the container's own. Plain instructions only, so that every builder
# can build it; another base needs Python 3.11 or newer with venv.
ARG BASE=python:3.11-slim
FROM ${BASE}

RUN python3 -m venv /opt/quiverlog
COPY pyproject.toml README.md LICENSE /src/
COPY broker /src/broker
COPY connector /src/connector
RUN /opt/quiverlog/bin/pip install --no-cache-dir "/src[broker]" && rm -rf /src

ENV PATH=/opt/quiverlog/bin:$PATH PYTHONUNBUFFERED=1
RUN mkdir /data && chown 65534:65534 /data
USER 65534:65534
VOLUME /data
EXPOSE 9292 9293
# SIGTERM (docker stop) drains, flushes and writes the clean-shutdown mark.
STOPSIGNAL SIGTERM
ENTRYPOINT ["quiverlog"]
CMD ["broker", "--data-dir", "/data", "--listen", "0.0.0.0:9292", "--http-listen", "0.0.0.0:9293"]
